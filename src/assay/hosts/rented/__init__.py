"""Machines billed by the hour: requested once, monitored, confirmed gone, recorded in a journal."""
