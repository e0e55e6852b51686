"""A page for people: chat playground, live gauges, the platform's decisions. Static files only."""
