// What a peer's process holds beside its machine: blobs, and what of its microbatches has come.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "peer/machine/peer.h"
#include "sim/agreement.h"
#include "sim/model.h"
#include "sim/network.h"

namespace weft::sim {

class PeerBlobs {
 public:
  void hold(const Digest& blob, int64_t size) { sizes_[blob] = size; }
  void drop(const Digest& blob) { sizes_.erase(blob); }
  bool has(const Digest& blob) const { return sizes_.contains(blob); }
  std::optional<int64_t> size(const Digest& blob) const;
  size_t count() const { return sizes_.size(); }
  // One that is asked for again does not wait for the first answer any more: whether this is the latest.
  uint64_t begin_fetch(const Digest& blob) { return fetching_[blob] = ++fetches_; }
  bool end_fetch(const Digest& blob, uint64_t fetch);
  void clear();

 private:
  struct Hash {
    size_t operator()(const Digest& digest) const { return value_of(digest); }
  };
  std::unordered_map<Digest, int64_t, Hash> sizes_;      // never walked through
  std::unordered_map<Digest, uint64_t, Hash> fetching_;  // the fetch's number; never walked through
  uint64_t fetches_ = 0;
};

class Microbatches {
 public:
  struct Arrived {
    uint64_t value = 0;
    proto::TensorHeader header;
  };
  using Key = peer::MicrobatchKey;
  static Key key_of(const proto::TensorHeader& header) {
    return {header.program, header.step, header.microbatch};
  }

  // For a receive of its program, by index. `keeps_old`: one that came before stays.
  void put(const Key& key, uint32_t receive, const TensorPacket& packet, bool keeps_old);
  // The same tensor is counted once more.
  void add_again(const TensorPacket& packet);
  // By receive; nullptr: nothing has come. What is used is erased there.
  std::map<uint32_t, Arrived>* tensors(const Key& key);
  void put_data(const Key& key, uint64_t position) { data_[key] = position; }
  std::optional<uint64_t> data(const Key& key) const;
  void drop(const Key& key);
  void clear();

 private:
  std::map<Key, std::map<uint32_t, Arrived>> tensors_;
  std::map<Key, uint64_t> data_;
};

// What the seats of other replicas have sent for agreements, as peer/service/inbox.h has it: a Mean takes
// what is of its own tensors, with an Agree the round is over. And sums of gradients, of each step all that
// came.
class AgreedTensors {
 public:
  void put(const TensorPacket& packet);
  std::vector<HashShare> take(const proto::AssignStage& assignment, const peer::Task& task);
  void clear() {
    tensors_.clear();
    sums_.clear();
  }

 private:
  std::map<std::pair<uint64_t, proto::Direction>, std::vector<HashShare>> sums_;  // by step and direction
  // By the steps of the run agreed before the round, and by direction.
  std::map<std::pair<uint64_t, proto::Direction>, std::vector<HashShare>> tensors_;
};

// As the links of a real peer see it: how long a large tensor took to come, when nothing else was on the way.
class LinkTimings {
 public:
  void note(const plan::Seat& from, int64_t bytes, double bytes_per_second);
  // And forgets them.
  void tell(proto::StepReport& report);

 private:
  std::map<plan::Seat, proto::LinkUse> since_;  // the last report of a step
};

// One task after the other; a device that hangs begins none.
class SimDevice {
 public:
  void begin(Instant now) { free_ = now; }
  // When what is given to it now is done.
  Instant work(Instant now, Duration busy) { return free_ = std::max(free_, now) + busy; }
  void hang(Instant now, Duration duration) { hangs_until_ = work(now, duration); }
  bool hangs(Instant now) const { return hangs_until_ > now; }
  Instant free() const { return free_; }

 private:
  Instant free_{}, hangs_until_{};
};

}  // namespace weft::sim
