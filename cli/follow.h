// Watching a job from its user's side: its events as they come, over broken connections and restarts of the
// broker.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/client.h"
#include "cli/report.h"
#include "proto/messages.h"

namespace weft::cli {

struct FollowOptions {
  bool follow = true;         // false: only what has happened
  bool ends_planned = false;  // with the first plan
  bool ends_unread = false;   // whoever reads what is shown may go: then this ends, too
  Duration status_every{};  // how often the state of stages and links is asked for and shown, behind the last
                            // step at least once a second; zero: never
};
struct Followed {
  proto::JobState state = proto::JobState::Queued;
  std::string reason;
  uint64_t step = 0;
  std::map<std::string, double> metrics;  // of the last evaluation
  bool diverged = false;                  // it failed because its numbers were not finite
  double seconds = 0;                     // from the first event to the last, by the broker's clock
  int64_t unix_ms = 0;                    // of the last
  std::vector<replicas::Begun> plans;     // of replicas with local steps (replicas::rounds_of)
};

// Shows the job's events until its end (or until now). `client` is used while it lasts and replaced when it
// is lost; at the end it may be null. Where nobody reads any more and that ends it, the state is that of the
// last event. Cancelled when the user interrupted; Unavailable when the broker stayed away for long.
Result<Followed> follow_job(BrokerAccess& access, std::unique_ptr<Client>& client, proto::JobNumber job,
                            const FollowOptions& options, Report& report);

// What a command returns that followed a job to its end: 0, 130 for one that was stopped, 7 for one that
// diverged, else 1; of one that failed the reason goes to standard error.
int end_of(proto::JobNumber job, const Followed& followed);

// A client again, with back-off while the broker is away. Says so once on standard error.
Result<std::unique_ptr<Client>> reconnect(BrokerAccess& access);

}  // namespace weft::cli
