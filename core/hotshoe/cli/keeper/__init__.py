"""Starts by fork: a process that has imported everything runs command lines of its user.

The client asks (`client`), the keeper forks (`forking`), and the fork becomes what was asked for
(`request`). Both find each other by a name that says in what all their starts are alike (`place`).
"""
