// Between the broker's core and its gates, which know the jobs that serve and hold their peers, and its door
// for requests, which knows what is asked of them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "proto/messages.h"
#include "security/token.h"

namespace weft::broker {

// Where requests go: every stage of this plan runs.
struct ServedPlace {
  proto::JobNumber job = 0;
  proto::PlanVersion plan_version = 0;
  PeerId entry{};  // the peer of stage 0
  bool operator==(const ServedPlace&) const = default;
};

// A job that serves and has not ended. Until its first plan, or the first of a broker that was restarted,
// only the name of what it serves is known, and there is no place.
struct ServedJob {
  proto::JobNumber job = 0;
  proto::ServedModel model{};
  std::string tokenizer_json{};  // the submission's file; empty: bytes are tokens
  int64_t created = 0;           // seconds since 1970
  std::string unavailable{};     // what lacks, for people, while there is no place
  // When it comes back as it was, its peer was away for a while: what was sent to it and came from it
  // meanwhile may be lost.
  std::optional<ServedPlace> place{};
};

// Any thread; nothing here waits. What is said of one job comes in order.
class ServedView {
 public:
  virtual ~ServedView() = default;
  virtual void on_served(const ServedJob& job) = 0;     // new, or changed
  virtual void on_withdrawn(proto::JobNumber job) = 0;  // it has ended
  // Of the entry of a job's newest place; its run and plan may be of a place that the view knows not yet, or
  // no more.
  virtual void on_progress(const PeerId& from, const proto::ServeProgress& progress) = 0;
};

// To a peer that runs a stage, by whichever gate holds it; dropped where none does. Any thread; it does not
// wait.
using TellPeer = std::function<void(const PeerId& to, proto::Message message)>;

// Who shows a token that may ask for tokens: a caller's, a submitter's or an admin's.
struct Caller {
  uint64_t token = 0;  // its id
  security::Role role = security::Role::Caller;
  std::string label{};  // whom it was made for, for people
};
// Errors: NotFound, there is no token or none that is good (401); PermissionDenied, it is of a role that may
// not ask (403); Unavailable, it cannot be said now (503). Any thread; reads one row of a local database.
using CheckCaller = std::function<Result<Caller>(std::string_view bearer_token)>;

}  // namespace weft::broker
