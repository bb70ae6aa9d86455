// What a broker is told at its start.
#pragma once

#include <functional>
#include <string>

#include "broker/pool/pool.h"
#include "broker/run/drift.h"
#include "broker/run/run_options.h"
#include "broker/run/slowness.h"

namespace weft::broker {

// How much of each is taken.
struct AdmissionLimits {
  size_t jobs_max = 1000;       // queued and running
  size_t jobs_max_of_key = 64;  // of one who submits
  size_t clients_max = 256, clients_max_of_key = 32;
  size_t bulk_max_of_key = 2;         // a peer's: the one before may be a leftover
  size_t keys_of_token_max = 10'000;  // that are known without it
};

struct BrokerOptions {
  std::string name = "broker";
  std::string software{};  // version
  Duration heartbeat_interval = std::chrono::seconds(2);
  Duration lease = std::chrono::seconds(10);
  // Deadlines; what has to be sent gets the time it takes at `slowest_bytes_per_second` on top.
  Duration loading_deadline = std::chrono::seconds(300);  // from assignment to every stage ready
  // Of a running run: for the next step (or twenty predicted ones, whatever is longer), for a part of a
  // checkpoint, for each request of an evaluation or prediction.
  Duration stall_deadline = std::chrono::seconds(60);
  double slowest_bytes_per_second = 125e3;
  // Losses of a job without a step between them. From the second on (of a service: behind as many as it has
  // stages) it waits before it is placed again: `failure_pause`, then twice as long each time, at most
  // `failure_pause_max`; a service that stood for as long does not. A run ends after `failures_max`.
  Duration failure_pause = std::chrono::seconds(1), failure_pause_max = std::chrono::seconds(120);
  uint32_t failures_max = 16;
  // After a restart, for the peers of a run to come back; then the run goes back to its recovery point.
  Duration return_deadline = std::chrono::seconds(10);
  // Copies of states that no commit waits for go from the stages straight to the peers that stand by.
  bool copies_go_direct = true;
  // After this wait for peers, those that failed the job become eligible again; and once it has served for so
  // long.
  Duration forgive_after = std::chrono::seconds(60);
  // false: links are taken as the regions' names suggest.
  bool measures_links = false;
  Duration measuring_max = std::chrono::seconds(20);  // how long a job waits for that
  std::function<proto::Secret()> draw_secret{};       // where links are measured: for the relay
  AdmissionLimits limits{};
  SlowOptions slow{};
  PoolOptions pool{};
  RunOptions run{};  // its copies of states go by the same rate to stand-bys
  DriftOptions drift{};
};

}  // namespace weft::broker
