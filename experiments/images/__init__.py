"""Image classification with losses of the spherical family (de Brebisson & Vincent 2016)."""
