#include "cli/attending.h"

#include <fmt/format.h>
#include <time.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <thread>

#include "cli/exit_codes.h"
#include "cli/peer_work.h"
#include "cli/say.h"

namespace weft::cli {
namespace {

// Of a device that computes still, or will never answer, when all else has ended; and then of all others.
constexpr Duration kGrace = std::chrono::seconds(5);
constexpr Duration kLookEvery = std::chrono::seconds(1);
// A broker that does not take the work away for so long will not do so at all.
constexpr Duration kHandOverMax = std::chrono::minutes(10);

// Goes on while the machine sleeps.
Instant boot_clock() {
  timespec time{};
  ::clock_gettime(CLOCK_BOOTTIME, &time);
  return Instant(std::chrono::seconds(time.tv_sec) + Duration(time.tv_nsec));
}
Attendance::Now now() { return {.clock = boot_clock(), .civil = civil_time(std::time(nullptr))}; }

// A thread may still look up a name that a broker gave, for as long as whoever answers for it likes: that is
// not waited for.
void end_soon(const Result<int>& result) {
  std::thread([code = result ? *result : exit_code(result.error().code)] {
    std::this_thread::sleep_for(kGrace);
    std::fflush(nullptr);
    std::_Exit(code);
  }).detach();
}

class Attender {
 public:
  explicit Attender(Attending what) : what_(std::move(what)) {}

  Result<int> run() {
    for (;;) {
      WEFT_TRY(const bool goes_on, wait());
      if (!goes_on) return kExitOk;
      WEFT_TRY(const auto ended, work());
      if (ended) return *ended;
    }
  }

 private:
  bool is_open() const { return what_.attendance.is_open(now()); }
  std::string describe() const { return what_.attendance.describe(now()); }

  std::string carry_out(const ControlRequest& request) {
    switch (request.kind) {
      case ControlRequest::Kind::Pause:
        what_.attendance.pause(request.length, boot_clock());
        break;
      case ControlRequest::Kind::Resume:
        if (!what_.attendance.resume(boot_clock())) return "it was not paused: " + describe();
        break;
      case ControlRequest::Kind::Status:
        break;
    }
    return describe();
  }

  // Until it is to work; false: it was told to leave.
  Result<bool> wait();
  // One visit; nothing: it is over for now.
  Result<std::optional<int>> work();

  // What it does is said, to the log and to whoever watches.
  void tell_of_work(const peer::PeerActivity& activity) {
    for (const std::string& line : work_.lines(activity, boot_clock())) what_.service.log(line);
    if (what_.metrics) what_.metrics->set(peer_metrics(activity, work_.done(), !is_open()));
  }

  Attending what_;
  PeerWork work_;
};

Result<bool> Attender::wait() {
  if (is_open()) return true;
  say(stderr, "info away reason=\"{}\"\n", describe());
  work_.begin_visit();  // what was done so far stays counted
  tell_of_work({});
  net::Loop loop;
  bool leaves = false;
  WEFT_TRY(const auto signals, SignalWatch::start(loop, [&](int) {
             leaves = true;
             loop.stop();
           }));
  if (what_.control)
    what_.control->attach(loop, [&](const ControlRequest& request) {
      std::string says = carry_out(request);
      if (is_open()) loop.stop();
      return says;
    });
  while (!leaves && !is_open()) loop.run_until(kLookEvery, [&] { return leaves || is_open(); });
  if (what_.control) what_.control->detach();
  if (!leaves) say(stderr, "info back\n");
  return !leaves;
}

Result<std::optional<int>> Attender::work() {
  net::Loop loop;
  peer::PeerService peer(loop, what_.service);
  bool forced = false, leaves = false, goes_away = false;
  work_.begin_visit();
  std::unique_ptr<net::Loop::Timer> look, late;
  const auto hand_over = [&] {
    peer.request_drain({.reason = leaves ? "" : describe(), .returns = !leaves});
    if (!late)
      late = loop.after(kHandOverMax, [&] {
        say(stderr, "warning not_handed_over reason=\"the broker did not take the work away\"\n");
        peer.stop();
      });
  };
  const auto look_at_hours = [&] {
    if (leaves || goes_away || is_open()) return;
    goes_away = true;
    say(stderr, "info leaving_off reason=\"{}\"\n", describe());
    hand_over();
  };
  std::function<void()> look_again = [&] {
    look_at_hours();
    tell_of_work(peer.activity());
    look = loop.after(kLookEvery, look_again);
  };
  look_again();
  WEFT_TRY(const auto signals, SignalWatch::start(loop, [&](int count) {
             leaves = true;
             if (count == 1) {
               say(stderr, "leaving after the work at hand is handed over; again to leave at once\n");
               hand_over();
             } else {
               forced = true;
               peer.stop();
             }
           }));
  std::unique_ptr<SignalWatch> reloads;
  if (!what_.reload.empty()) {
    WEFT_TRY(reloads, SignalWatch::start(
                          loop, [&](int) { what_.on_reload(); }, what_.reload));
  }
  if (what_.control)
    what_.control->attach(loop, [&](const ControlRequest& request) {
      std::string says = carry_out(request);
      look_at_hours();
      return says + "; " +
             (goes_away ? "what it works on is handed over first" : weft::cli::describe(peer.activity()));
    });
  const Status left = peer.run();
  look.reset();
  late.reset();
  if (what_.control) what_.control->detach();
  Result<int> result = forced ? kExitStopped : kExitOk;
  if (!left) result = fail(left.error());
  if (!peer.rest(kGrace)) {
    say(stderr, "warning device_left_behind reason=\"it has not answered for {} s\"\n",
        std::chrono::duration_cast<std::chrono::seconds>(kGrace).count());
    end_at_once(result);
  }
  if (result && goes_away && !leaves) return std::nullopt;
  end_soon(result);
  if (!result) return fail(result.error());
  return std::optional<int>(*result);
}

}  // namespace

void end_at_once(const Result<int>& result) {
  const int code = end_with(result);
  std::fflush(nullptr);
  std::_Exit(code);
}

Result<int> attend(Attending attending) { return Attender(std::move(attending)).run(); }

}  // namespace weft::cli
