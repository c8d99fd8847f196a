"""The callbacks of a training run; `order` lists them."""
