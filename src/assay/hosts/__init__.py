"""Remote machines: request them, run the same Assay with the same options on them, and release them."""
