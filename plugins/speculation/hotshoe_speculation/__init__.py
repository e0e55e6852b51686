"""Methods of speculation: proposers for hook `hotshoe_proposers`."""
