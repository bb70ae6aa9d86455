// Internal to serve: the caches of one sequence, in one block of the device's memory.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "dag/incremental/incremental.h"
#include "peer/backend/backend.h"

namespace weft::serve {

// Positions that there is room for, where so many are wanted: few sizes, for each has programs of its own.
int64_t rounded_capacity(int64_t positions, int64_t context);

// Where each cache begins in the memory of a sequence.
class CacheLayout {
 public:
  CacheLayout(std::vector<dag::CacheSpec> caches, peer::Backend& backend);

  Bytes bytes(int64_t capacity) const { return {offsets(capacity).back()}; }
  // By cache, in the order of their names; then the size of all.
  std::vector<int64_t> offsets(int64_t capacity) const;
  const std::map<std::string, dag::CacheSpec>& caches() const { return caches_; }
  peer::Backend& backend() const { return backend_; }

 private:
  peer::Backend& backend_;
  std::map<std::string, dag::CacheSpec> caches_;
};

// Its memory is taken once, for all positions that are sure to come; the part of it that is in use grows, for
// attention computes over all of that, and whoever takes memory pays for touching it first.
class Cache {
 public:
  int64_t capacity() const { return capacity_; }
  peer::View at(int64_t offset) const { return {memory_.get(), offset}; }
  // Capacity for so many positions, and memory for `room`; the first `kept` of those that are there stay.
  // Without memory nothing changes.
  Status reserve(int64_t positions, int64_t room, int64_t kept, const CacheLayout& layout, int64_t context);
  // Once a pass: clears a part of what the next capacity will need, so that growing does not touch all of it
  // at once. The first touch of memory takes as long as many passes.
  Status prepare(const CacheLayout& layout, int64_t context);
  // From that position on there are zeros again.
  Status clear_behind(int64_t kept, const CacheLayout& layout) const;

 private:
  Status move(peer::Memory& to, int64_t capacity, int64_t kept, const CacheLayout& layout) const;

  std::unique_ptr<peer::Memory> memory_;
  int64_t capacity_ = 0;
  int64_t cleared_ = 0;  // bytes from the begin that hold numbers, if not the right ones
};

}  // namespace weft::serve
