"""Jobs on machines that share no files with this one."""
