"""The kinds of exchange that the demo model learns; each module offers functions of a `World`."""
