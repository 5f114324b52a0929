"""What a look-up has to find and a commit to publish, told slowly from texts; shares no code with the rules."""

from tests.prefix_cache.content_worker import visible_from


def last_boundary(config, num_tokens):
    """The last position at which a repetition of a prompt can resume; 0 if there is none."""
    alignment = config.cache_hit_alignment_tokens
    beyond = alignment if config.drop_eagle_block else max(1, config.num_hash_lookahead_tokens)
    return max((p for p in range(0, num_tokens + 1, alignment) if p + beyond <= num_tokens), default=0)


def _margin(config):
    """Tokens after a boundary that have to be known: what a draft head wrote for a token depends on the next one."""
    return config.hash_block_size if config.drop_eagle_block else 0


def serves(config, index, published, prompt, position):
    """Whether a group holds all that a request reads that resumes at a boundary."""
    group = config.groups[index]
    if group.kind == "state":
        return (index, prompt.prefix(position)) in published
    if position % group.block_size:
        return False
    seen = range(visible_from(group, position), position + (_margin(config) if group.kind == "full" else 0))
    ends = {(token // group.block_size + 1) * group.block_size for token in seen}
    limit = len(prompt.text + prompt.output)
    return all(end <= limit and (index, prompt.prefix(end)) in published for end in ends)


def longest_hit(config, published, prompt):
    """(hit, attention's): the longest boundary that all groups serve, and that attention groups know and serve.

    `published` is a set of (group, text).
    """
    groups = range(len(config.groups))
    attention = [index for index in groups if config.groups[index].kind != "state"]
    sizes = [config.groups[index].block_size for index in attention]
    boundaries = range(last_boundary(config, len(prompt.text)), 0, -config.cache_hit_alignment_tokens)
    whole = [p for p in boundaries if all(p % size == 0 for size in sizes)]
    hit = next((p for p in whole if all(serves(config, index, published, prompt, p) for index in groups)), 0)
    known = [p for p in whole if any((index, prompt.prefix(p)) in published for index in attention)]
    served = (p for p in known if all(serves(config, index, published, prompt, p) for index in attention))
    return hit, max(hit, next(served, 0))


def publications(config, retention, chunk, prompt, junction, declined):
    """All (group, text) that the commit of a chunk has to publish."""
    last = last_boundary(config, len(prompt.text))
    found = set()
    for index, group in enumerate(config.groups):
        if group.kind != "state":
            ends = range(group.block_size, chunk.end + 1, group.block_size)
            found |= {(index, prompt.prefix(end)) for end in ends if end > chunk.start}
            continue
        offset = int(chunk.groups[index, 0])
        positions = [chunk.end] + ([chunk.start + offset] if offset and not declined else [])
        for position in positions:
            on_interval = retention.interval and position % retention.interval == 0
            proven = {p for point in (last, junction) for p in (point, point // group.block_size * group.block_size)}
            if position % config.cache_hit_alignment_tokens == 0 and (on_interval or position in proven):
                found.add((index, prompt.prefix(position)))
    return found


def held_cols(group, position):
    """Table columns that a request holds once `position` tokens are done."""
    end = -(-position // group.block_size)
    if group.kind == "state":
        return set(range(max(end - 1, 0), end + (group.num_speculative_blocks if position else 0)))
    return set(range(visible_from(group, position) // group.block_size, end))
