// What the replicas of a run come to, computed by one machine: one round after the other, as its record lists
// them (replicas::rounds_of), each replica in turn. Nothing else of the run is known here.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "replicas/outer_round.h"
#include "sim/agreement.h"
#include "sim/model.h"

namespace weft::sim {

class RoundsAlone {
 public:
  explicit RoundsAlone(const JobSpec& job);

  using Rounds = std::vector<replicas::OuterRound>;
  struct Shared {
    uint64_t agreed = 0, momentum = 0, return_residue = 0;
    std::optional<uint64_t> overlapped{};  // the mean of the round before, which nobody has taken
  };
  struct OwnTensor {
    uint64_t slots[2] = {0, 0};
    uint64_t residue = 0;
    std::optional<uint64_t> start{};  // where rounds overlap: from where its difference is taken
    std::optional<uint64_t> now{};    // what the next round begins with, if not with that
    uint64_t read = 0;                // its last difference
  };
  struct Own {
    std::map<std::string, OwnTensor> tensors;
    uint64_t updates = 0;
    std::map<uint32_t, uint64_t> steps;  // by fragment, since it was agreed about
  };
  struct State {
    std::map<std::string, Shared> shared;  // by parameter
    std::vector<Own> own;                  // by replica
  };
  // After them: of the whole rounds that follow each other from the beginning on.
  const State& after(const Rounds& rounds);
  // The same as those see it who begin with `inherited`, and are so many.
  State begun(const Rounds& rounds, const replicas::Inherited& inherited, size_t replicas);

  // A replica's own steps of the round that follows, in order: they depend on no other replica.
  struct Made {
    double loss = 0, norm = 0;
  };
  std::vector<Made> steps_of(const Rounds& before, const replicas::OuterRound& round, uint32_t replica);
  std::map<std::string, double> evaluation(const Rounds& rounds);

  const std::vector<std::string>& names() const { return names_; }  // by number

 private:
  static void inherit(State& state, const replicas::Inherited& inherited);
  static void become(State& state, size_t replicas);
  Alone::State make_steps(const State& from, const replicas::OuterRound& round, uint32_t replica,
                          std::vector<Made>& made);
  State make_round(State state, const replicas::OuterRound& round);
  void agree(State& state, const replicas::OuterRound& round, uint32_t number) const;
  uint64_t take_mean(State& state, const replicas::OuterRound& round, uint32_t number) const;

  JobSpec job_;
  replicas::ReplicaTerms terms_;
  Alone alone_;
  std::vector<std::string> names_;   // by number
  std::vector<uint32_t> fragments_;  // likewise
  State start_;
  struct Done {
    replicas::OuterRound round;
    State after;
  };
  std::vector<Done> done_;  // the last ones that were asked for
  struct Steps {
    Rounds before;
    replicas::OuterRound round;
    uint32_t replica = 0;
    std::vector<Made> made;
  };
  std::map<uint32_t, Steps> steps_;  // likewise, by replica
};

}  // namespace weft::sim
