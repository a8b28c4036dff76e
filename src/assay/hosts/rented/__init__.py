"""Machines that cost money by the hour: requested once, monitored, seen gone, recorded in a journal."""
