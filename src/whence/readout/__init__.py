"""From attention maps, gradients and relevance to scores per token. It knows no method."""
