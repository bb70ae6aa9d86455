#include "cli/follow.h"

#include <algorithm>
#include <cstdio>

#include "cli/exit_codes.h"
#include "cli/live_line.h"

namespace weft::cli {
namespace {

constexpr Duration kBackoffFirst = std::chrono::milliseconds(250);
constexpr Duration kBackoffMax = std::chrono::seconds(5);
constexpr Duration kAwayMax = std::chrono::minutes(30);
constexpr size_t kPlansMax = 10000;                            // of replicas; more are left out
constexpr Duration kStatusOfSaving = std::chrono::seconds(1);  // nothing else says how far it is

class Follower {
 public:
  Follower(BrokerAccess& access, proto::JobNumber job, const FollowOptions& options, Report& report)
      : access_(access), job_(job), options_(options), report_(report) {}

  // Until the end, on this connection.
  Status run(Client& client) {
    client.send(proto::GetEvents{job_, next_, options_.follow});
    bool asked = false;
    Instant asked_at = access_.loop().now();
    for (;;) {
      const bool shows_status = options_.status_every > Duration::zero();
      const Instant due = wants_status_ ? asked_at : asked_at + status_every();
      if (shows_status && !asked && access_.loop().now() >= due) {
        client.send(proto::GetJob{job_});
        asked = true;
        wants_status_ = false;
        asked_at = access_.loop().now();
      }
      const Duration wait = shows_status && !asked ? due - access_.loop().now() : kAnswerDeadline;
      if (options_.ends_unread && report_.is_unread()) return {};
      WEFT_TRY_STATUS(client.wait(std::max(wait, Duration::zero())));
      while (auto message = client.take()) {
        if (const auto* event = std::get_if<proto::JobEvent>(&*message)) {
          on_event(*event);
          if (options_.ends_planned && event->kind == proto::JobEventKind::Plan) return {};
        } else if (auto* status = std::get_if<proto::JobStatus>(&*message)) {
          asked = false;
          on_status(std::move(*status));
        } else if (const auto* refusal = std::get_if<proto::Refusal>(&*message)) {
          return fail(refusal->code, refusal->message);
        } else if (std::holds_alternative<proto::EventsEnd>(*message)) {
          return {};
        }
      }
    }
  }

  const Followed& followed() const { return followed_; }

 private:
  void on_event(const proto::JobEvent& event) {
    if (event.job != job_ || event.sequence < next_) return;  // shown before the connection was lost
    next_ = event.sequence + 1;
    followed_.state = event.state;
    followed_.step = event.step;
    if (event.sequence == 1) first_ms_ = event.unix_ms;
    followed_.seconds = static_cast<double>(event.unix_ms - first_ms_) / 1000;
    if (event.kind == proto::JobEventKind::State) {
      followed_.reason = event.text;
      followed_.diverged = event.diverged;
    }
    if (!event.metrics.empty()) followed_.metrics = event.metrics;
    if (event.local_steps && followed_.plans.size() < kPlansMax)
      followed_.plans.push_back({*event.local_steps, event.inherited});
    followed_.unix_ms = event.unix_ms;
    // From here on it is known how many steps there are.
    if (event.kind == proto::JobEventKind::State && event.state == proto::JobState::Running)
      wants_status_ = true;
    if (const auto shown = to_run_event(event)) report_.show_at(*shown, event.unix_ms);
  }

  void on_status(proto::JobStatus status) {
    steps_ = status.steps;
    is_saving_ = status.saving.step > 0;
    if (status.state == proto::JobState::Running || status.state == proto::JobState::Stopping)
      report_.show(StatusEvent{std::move(status)});
  }

  Duration status_every() const {
    const bool is_behind = steps_ > 0 && followed_.step >= steps_;
    return is_saving_ || is_behind ? std::min(options_.status_every, kStatusOfSaving) : options_.status_every;
  }

  BrokerAccess& access_;
  proto::JobNumber job_;
  const FollowOptions& options_;
  Report& report_;
  uint64_t next_ = 1;
  int64_t first_ms_ = 0;
  bool wants_status_ = false;  // now
  uint64_t steps_ = 0;         // as the last status said
  bool is_saving_ = false;     // likewise
  Followed followed_;
};

bool may_come_back(ErrorCode code) { return code == ErrorCode::Unavailable || code == ErrorCode::Timeout; }

}  // namespace

Result<std::unique_ptr<Client>> reconnect(BrokerAccess& access) {
  const Instant since = access.loop().now();
  bool said = false;
  for (Duration backoff = kBackoffFirst;; backoff = std::min(2 * backoff, kBackoffMax)) {
    auto client = access.connect();
    if (client) {
      if (said) std::fprintf(stderr, "the broker is back\n");
      return client;
    }
    if (!may_come_back(client.error().code) || access.loop().now() - since > kAwayMax) return client;
    if (!said)
      std::fprintf(stderr, "the broker is away (%s); waiting for it\n", client.error().message.c_str());
    said = true;
    access.pause(backoff);
    if (access.interrupted()) return fail(ErrorCode::Cancelled, "interrupted");
  }
}

int end_of(proto::JobNumber job, const Followed& followed) {
  if (followed.state == proto::JobState::Finished) return kExitOk;
  if (followed.state == proto::JobState::Stopped) return kExitStopped;
  std::fprintf(stderr, "weft: error: job %llu failed: %s\n", static_cast<unsigned long long>(job),
               printable(followed.reason).c_str());
  return followed.diverged ? kExitDiverged : kExitFailed;
}

Result<Followed> follow_job(BrokerAccess& access, std::unique_ptr<Client>& client, proto::JobNumber job,
                            const FollowOptions& options, Report& report) {
  report.about(job);
  Follower follower(access, job, options, report);
  for (;;) {
    if (!client || client->lost()) {
      client.reset();
      report.make_way();
      WEFT_TRY(client, reconnect(access));
    }
    const Status status = follower.run(*client);
    if (status) return follower.followed();
    if (!client->lost()) return fail(status.error());
  }
}

}  // namespace weft::cli
