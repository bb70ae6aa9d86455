// What the entry of a served model knows of each request: the tokens that were drawn for it, how much of that
// the broker was told, and how it ended. Kept for a while beyond the end, so that a broker that comes back,
// or has lost a message, is told again instead of everything being drawn anew. Pure: time is handed in.
//
// Bounds: open requests and their prompts (add); of those that have ended the newest kEndedMax with
// kEndedTokensMax tokens, for kEndedFor. They are kept to when a request is added and when progress is told,
// so that what ends is told first.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/units.h"
#include "proto/messages.h"

namespace weft::peer {

class ServeRequests {
 public:
  static constexpr size_t kWaitingMax = 1024;  // open beyond those that may be served at once
  static constexpr uint64_t kPromptTokensMax = uint64_t{1} << 24;  // of all that are open
  static constexpr size_t kEndedMax = 4096;
  static constexpr uint64_t kEndedTokensMax = uint64_t{1} << 20;
  static constexpr Duration kEndedFor = std::chrono::seconds(60);
  static constexpr Duration kAskedAgainFor = std::chrono::seconds(10);
  static constexpr size_t kTokensAtOnce = 1024;  // of one message

  // REQUIRES: the assignment serves.
  explicit ServeRequests(const proto::AssignStage& assignment);

  // Whether it is new and to be drawn for. Of one that is known, what was drawn behind the tokens that it
  // names is told again; one that there is no room for is told as failed.
  bool add(Instant now, const proto::ServeRequest& request);
  // Whether tokens are being drawn for it.
  bool is_open(uint64_t request) const;
  // From whoever draws: the next tokens of a request, or its end.
  void on_progress(Instant now, const proto::ServeProgress& progress);
  void on_load(const proto::ServeLoad& load);  // passes and rows are added up
  void on_tick(Instant now);
  // A stage of the next plan goes on with them. What the broker wants of them it asks for again; of the
  // others it is told nothing.
  void take_over(const proto::AssignStage& assignment);
  // Those that are open and were not asked for within kAskedAgainFor of the first that was.
  std::vector<uint64_t> take_unwanted(Instant now);
  // The broker is back: each request is told of, if only how far it is, so that what was lost is noticed.
  void tell_all();

  // What the broker has not been told, each request's tokens in their order. The first has the load, and the
  // guesses that were not told.
  std::vector<proto::ServeProgress> take();

  size_t open() const { return requests_.size() - ended_.size(); }
  size_t ended() const { return ended_.size(); }

 private:
  struct Request {
    uint64_t prompt = 0;  // tokens before the first that is drawn here
    std::vector<proto::ServedToken> tokens{};
    uint64_t told = 0;  // of them
    std::optional<proto::ServeEnd> end{};
    std::optional<Error> error{};
  };
  std::optional<Error> has_no_room_for(const proto::ServeRequest& request) const;
  void end(Instant now, uint64_t number, proto::ServeEnd end, const std::optional<Error>& error);
  void tell(uint64_t number, Request& request, std::vector<proto::ServeProgress>& progress) const;
  void trim();
  void forget_oldest();

  proto::JobNumber run_;
  proto::PlanVersion plan_version_;
  size_t open_max_;
  std::map<uint64_t, Request> requests_;
  std::deque<std::pair<Instant, uint64_t>> ended_;  // the oldest first
  uint64_t open_prompt_tokens_ = 0, ended_tokens_ = 0;
  uint32_t guesses_ = 0, guesses_right_ = 0;  // that nobody was told of
  std::set<uint64_t> to_tell_;
  proto::ServeLoad load_{};
  std::set<uint64_t> not_asked_;  // since they were taken over
  std::optional<Instant> asked_since_;
};

}  // namespace weft::peer
