"""Multi-label classification (Balazy et al. 2023): every mapping as the output of a classifier."""
