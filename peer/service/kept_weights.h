// Blobs that need not be fetched, for files of this machine have them (weights/index.h), or what an
// assignment says how to make them of. They are read and checked on a thread of their own; everything else is
// the loop's.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>

#include "base/digest.h"
#include "base/result.h"
#include "net/frame.h"
#include "net/loop.h"
#include "net/worker.h"
#include "proto/stage.h"
#include "weights/index.h"

namespace weft::peer {

class KeptWeights {
 public:
  // `index`: null: there are none.
  KeptWeights(net::Loop& loop, std::shared_ptr<const weights::WeightIndex> index)
      : loop_(loop), index_(std::move(index)) {}

  // What it says of how blobs come of other tensors, in place of what an earlier assignment of the run said.
  void learn(const proto::AssignStage& assignment);
  bool has(const Digest& sha256, uint64_t size) const;
  // Calls back once, but not after reset() or the end. Errors: as of WeightIndex::read. REQUIRES: has() said
  // so.
  void read(const Digest& sha256, std::function<void(Result<net::SharedBytes>)> done);
  // What was asked for is not wanted.
  void reset() { ++*epoch_; }

  // A line for the log: how much of a stage was read here; empty: nothing.
  std::string describe(const proto::AssignStage& assignment) const;

 private:
  const dag::Recipe* find_recipe(const Digest& sha256) const;

  net::Loop& loop_;
  const std::shared_ptr<const weights::WeightIndex> index_;
  std::map<proto::JobNumber, std::unordered_map<Digest, dag::Recipe>>
      recipes_;  // of the last runs that said any
  std::shared_ptr<uint64_t> epoch_ = std::make_shared<uint64_t>(0);
  std::unordered_map<Digest, size_t> read_;  // bytes; of all that was read since the beginning
  std::unique_ptr<net::Worker> worker_;      // with the first request. Last: it ends before the rest goes
};

}  // namespace weft::peer
