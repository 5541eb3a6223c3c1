"""Container images: layers spliced from wheels, and the OCI layout around them."""
