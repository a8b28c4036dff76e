"""What is kept? Run folders, records and samples."""
