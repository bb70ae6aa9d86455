// A round: the snapshots of all stages after the same step, and their copies, as far as these are in. A
// stage's part of a direct one is made first, and in when a peer has fetched it; any other is in when the
// stage has reported it. So is one that stays with its stages: of replicas, each of which has what all agreed
// on. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "proto/messages.h"

namespace weft::broker {

// A checkpoint that is being uploaded.
struct Saving {
  uint64_t step = 0;
  Bytes bytes{}, saved{};  // of its tensors; and those of them that the broker has
};

struct Round {
  uint64_t sequence = 0, step = 0;
  Instant begun{};  // written then; the beginning of time: by a broker before this one
  bool durable = false;
  bool gates = false;  // its step is committed only with it
  bool failed = false;
  bool direct = false;
  bool stays = false;           // of a direct one: nobody fetches it
  bool with_followers = false;  // their stages have a part in it
  bool outlived = false;        // a stage came back to it
  std::vector<bool> made{};     // by stage: it has reported its part of a direct one
  Instant ready_at{};           // every stage had done its step
  Instant made_at{};            // every stage had made its part
  std::vector<bool> in{};       // by stage
  // By stage: how much of its part the broker has, as it last said; nothing: it has not begun.
  std::vector<std::optional<Bytes>> saved{};
  std::vector<proto::TensorReference> tensors{};         // each once
  std::vector<std::optional<uint64_t>> skipped_steps{};  // by replica, as its stages say, which have to agree
  std::vector<uint32_t> replica_of{};                    // by stage; empty: there is one replica
  std::vector<bool> follows{};                           // by stage; empty: none does
  // Of several replicas, who said what of each tensor, and where it is in `tensors`.
  struct Vote {
    uint32_t stage = 0;
    Digest sha256{};
    bool counts = true;  // not a follower's beside those of others: it was given what these have
  };
  struct Said {
    size_t index = 0;
    std::vector<Vote> votes{};
  };
  std::map<dag::StateKey, Said> said{};
  bool differs = false;  // some votes do, or did
  // A tensor that replicas have agreed on, and of which their stages hold different bytes.
  struct Disagreement {
    uint32_t stage = 0, other = 0;
    dag::StateKey key{};
    // Whose bytes of some tensor are none that most others hold; empty: there is one with which most do not
    // agree.
    std::vector<uint32_t> outvoted{};
  };

  // Nobody has said anything yet. `replicas`: as replica_of; `followers`: as `follows`.
  void begin(size_t stages, std::vector<uint32_t> replicas = {}, std::vector<bool> followers = {});

  bool is_whole() const;
  bool is_made() const;
  // A checkpoint of which some stage uploads its part, or has.
  bool is_being_saved() const;
  // `bytes`: of each stage's part.
  Saving saving(const std::vector<Bytes>& bytes) const;
  // Nobody waits for that stage's part any more. `forgets`: the others agree without it, so that what it had
  // said is of weights that nobody else has.
  void leave_out(uint32_t stage, bool forgets);
  // The stage has yet to report its part.
  bool awaits(uint32_t stage) const { return !(direct ? made : in)[stage]; }
  // Of a direct one that every stage has made: nobody has fetched that stage's part yet.
  bool awaits_fetch(uint32_t stage) const { return is_for_others() && is_made() && !in[stage]; }
  bool is_for_others() const { return direct && !stays; }  // to fetch

  // A stage reports its part. Why the round cannot have it, if it cannot; `blobs_missing`: of the report's
  // tensors, how many the broker has not, which a direct copy may. REQUIRES: awaits(stage).
  // InvalidArgument: the stage breaks the protocol.
  Result<std::optional<Error>> take(Instant now, uint32_t stage, const proto::CheckpointReport& report,
                                    uint32_t blobs_missing);
  // Of two replicas as soon as they differ, of more once all have said theirs.
  std::optional<Disagreement> disagreement() const;
  // A stage says how much of its part the broker has.
  void on_saving(uint32_t stage, Bytes bytes);
  // It is not wanted any more; whether it can go at once.
  bool drop();

 private:
  void take_tensors(uint32_t stage, const std::vector<proto::TensorReference>& of_stage);
};

}  // namespace weft::broker
