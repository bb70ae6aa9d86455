// One seed: a broker, peers, users and their jobs, and what happens to them. First anything may go wrong;
// then for a while only the broker is restarted, and no run may lose its plan by it; then nothing goes wrong
// any more, and every job must end within a bound.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sim/bugs.h"
#include "sim/faults.h"
#include "sim/liars.h"
#include "sim/user.h"

namespace weft::sim {

// A job of two stages in a world without faults, whose lines change while it runs.
struct DriftScenario {
  enum class Lines : uint8_t {
    Drop,  // the uplink of a peer that has a stage falls to a sixteenth, once
    Roam,  // the same every five minutes, to another; the one before is as fast as ever
    Sway,  // all by up to an eighth, every five seconds
  };
  Lines lines = Lines::Drop;
  bool moves = true;  // whether runs are planned again
  uint64_t steps = 3000;
};
// A job of three stages that exchange tensors of 64 MiB over lines of 8 Mbit/s, in a world without faults;
// data and copies of the state go over the same lines.
struct SlowScenario {
  bool relayed = false;  // peers do not reach each other
  bool foreseen = true;  // whether the plan knows of the lines
  uint64_t steps = 12;
};
struct SimulationOptions {
  uint64_t seed = 1;
  uint32_t peers = 8;
  std::optional<Duration> chaos{};  // nothing: drawn
  bool faults = true;
  Bug bug = Bug::None;
  bool trace = false;
  std::optional<DriftScenario> drift{};
  std::optional<SlowScenario> slow{};
  // The first job has replicas with local steps, and others may: fixed ones, or such as come and go.
  bool replicas = false;
  // The first job has replicas that add each step's gradients, and others may; some share slots.
  bool exact = false;
  // Of those that come and go: who comes needs long to be given what the others have, and may follow them.
  bool followers = false;
  uint32_t liars = 0;        // of a hundred peers, at most; enough are honest for every job
  std::optional<Lie> lie{};  // the one that all of them tell; nothing: drawn
};
struct SimulationResult {
  std::optional<std::string> failure{};
  std::string last_notes{};  // when it failed
  uint64_t trace_hash = 0, notes = 0;
  Duration virtual_time{};
  uint32_t jobs = 0;
  Checkers::Counts counts{};
  ReplicaLaws::Counts replicas{};
  size_t in_flight_max = 0;
  uint64_t tensors = 0, uploads = 0, given = 0, links_down = 0, links_failed = 0, connections_lost = 0;
  uint64_t evicted = 0;  // by the broker's last life
  uint64_t liars = 0, lies = 0;
};
SimulationResult simulate(const SimulationOptions& options);

}  // namespace weft::sim
