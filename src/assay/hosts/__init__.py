"""Where else? Machines that are asked for, run the same Assay on the same options, and are given back."""
