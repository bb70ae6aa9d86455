// What pages are told of a broker, as JSON. It asks the broker when a page asks, and never more often than
// kFresh: however many pages are open, they cost the broker what one does, and none costs it nothing. A value
// of one thread; time is handed in.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "base/units.h"
#include "ui/broker_view.h"
#include "ui/job_history.h"

namespace weft::ui {

inline constexpr Duration kFresh = std::chrono::milliseconds(900);
inline constexpr Duration kLinksFresh = std::chrono::seconds(5);
inline constexpr uint32_t kJobsShown = 50;
inline constexpr size_t kHistoriesMax = 8;  // of jobs; the one that was looked at longest ago makes room
inline constexpr size_t kChangesMax = 200;  // of peers
inline constexpr size_t kPeersShown = 300;
inline constexpr size_t kLinesShown = 60;  // of what was said of a job, the last

struct Look {
  proto::JobNumber job = 0;  // 0: the newest that runs, or else the newest
  // What the page has of the curves of that job.
  uint64_t generation = 0, points = 0, evaluations = 0;
};
struct Now {
  Instant clock{};
  int64_t unix_ms = 0;
};

// A peer that came, went, or changed its state, as it was seen here.
struct PeerChange {
  int64_t unix_ms = 0;
  std::string name, region, before, after;  // states; `before` empty: it is new, `after` empty: it is gone
};

class Board {
 public:
  explicit Board(BrokerView& broker) : broker_(broker) {}

  // {"broker":{...},"jobs":[...],"job":{...},"peers":[...],...}. Where the broker is away: what was known,
  // and why.
  std::string look(const Look& look, const Now& now);
  // Everything that is known of how a job was planned; errors as of the broker.
  Result<std::string> plan_page(proto::JobNumber job, const Now& now);
  // Asked of the broker now; what was known is asked again at the next look.
  Status stop(proto::JobNumber job);
  Status resume(proto::JobNumber job);

 private:
  struct Followed {
    JobHistory history;
    std::optional<proto::JobStatus> status{};
    Instant asked{}, looked{};
    bool is_asked = false;
  };
  void refresh(const Now& now);
  Status ask_overview(const Now& now);
  void note_changes(const proto::PeerList& peers, int64_t unix_ms);
  proto::JobNumber choose_job(proto::JobNumber wanted) const;
  Followed& follow(proto::JobNumber job, Instant now);
  Status refresh_job(proto::JobNumber number, Followed& job, Instant now);

  BrokerView& broker_;
  std::optional<BrokerName> name_;
  std::optional<Error> away_;  // why nothing newer is known
  int64_t heard_unix_ms_ = 0;
  std::optional<Instant> asked_, links_asked_;
  proto::JobList jobs_;
  proto::PeerList peers_;
  proto::LinkList links_;
  bool has_peers_ = false;  // those of before are known
  std::deque<PeerChange> changes_;
  std::map<proto::JobNumber, Followed> followed_;
};

}  // namespace weft::ui
