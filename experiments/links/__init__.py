"""The links of `experiments.emulated_links` and `experiments.concurrent`; tables and figure are those of `overhead`.

link       a link's rates and bus as a value and as a word; what copies cost here
machines   real machines, and their links on this one    tier       the swap tier: a native lane at the link's rate
"""
