"""From attention maps, gradients and relevance to scores per token. It does not depend on any method."""
