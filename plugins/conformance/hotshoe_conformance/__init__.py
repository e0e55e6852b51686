"""The conformance kit: every candidate of a platform against core's references."""
