"""Files of the older tools, read and written: imported by the command line and by the functions that need one."""
