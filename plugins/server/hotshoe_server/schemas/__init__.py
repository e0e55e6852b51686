"""What requests and answers look like: pydantic models in, dataclasses out."""
