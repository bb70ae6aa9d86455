// Parts of a model that replicas agree about in turn (ReplicaTerms::fragments), as in Streaming DiLoCo (arXiv
// 2501.18512): what travels while a round is made is a part of the model, and what comes of it is taken by
// then. Pure.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace weft::replicas {

// Of each tensor, by its place in the model, in which fragment it is: they are about equally large. The
// largest tensors are dealt first, each to the fragment that has least; of equals to the first. A tensor is
// never divided. REQUIRES: fragments >= 1.
std::vector<uint32_t> fragments_of(std::span<const uint64_t> elements, uint32_t fragments);

}  // namespace weft::replicas
