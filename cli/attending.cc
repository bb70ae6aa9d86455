#include "cli/attending.h"

#include <fmt/format.h>
#include <time.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <thread>
#include <utility>

#include "cli/exit_codes.h"
#include "cli/peer_work.h"
#include "cli/quantities.h"
#include "cli/say.h"
#include "peer/desktop/system_files.h"

namespace weft::cli {
namespace {

// Of a device that computes still, or will never answer, when all else has ended; and then of all others.
constexpr Duration kGrace = std::chrono::seconds(5);
constexpr Duration kLookEvery = std::chrono::milliseconds(250);
// A broker that does not take the work away for so long will not do so at all.
constexpr Duration kHandOverMax = std::chrono::minutes(10);
// A machine that is wanted back now is not held up for longer.
constexpr Duration kUrgentMax = std::chrono::seconds(2);
constexpr Duration kSleepMin = std::chrono::seconds(1);  // below: clocks that were read one after the other

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
      if (what_.prepare) WEFT_TRY_STATUS(std::exchange(what_.prepare, {})(what_.service));
      WEFT_TRY(const auto ended, work());
      if (ended) return *ended;
    }
  }

 private:
  class Visit;

  bool is_open() {
    if (what_.watch) what_.attendance.look(what_.watch->latest(), boot_clock());
    return what_.attendance.is_open(now());
  }
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

  // Why it keeps away, when that has changed; nothing holds the machine's sleep up any more.
  void tell_away();
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
  std::string told_;  // why it is away
};

void Attender::tell_away() {
  if (what_.watch && what_.watch->latest().about_to_sleep) what_.watch->let_it_sleep();
  const std::string why = what_.attendance.reason();
  if (why.empty() || why == told_) return;
  told_ = why;
  if (what_.notify) what_.notify("weft is paused", why);
}

Result<bool> Attender::wait() {
  if (is_open()) return true;
  what_.service.log(fmt::format("info away reason=\"{}\"", describe()));
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
  while (!leaves && !is_open()) {
    tell_away();
    loop.run_until(kLookEvery, [&] { return leaves || is_open(); });
  }
  if (what_.control) what_.control->detach();
  if (leaves) return false;
  what_.service.log("info back");
  if (!std::exchange(told_, {}).empty() && what_.notify) what_.notify("weft goes on", "");
  return true;
}

// From joining to having left.
class Attender::Visit {
 public:
  explicit Visit(Attender& of) : of_(of), peer_(loop_, of.what_.service) {}

  // Nothing: it is over for now.
  Result<std::optional<int>> run() {
    of_.work_.begin_visit();
    look_again();
    WEFT_TRY(const auto signals, SignalWatch::start(loop_, [this](int count) { on_signal(count); }));
    std::unique_ptr<SignalWatch> reloads;
    if (!of_.what_.reload.empty()) {
      WEFT_TRY(reloads, SignalWatch::start(
                            loop_, [this](int) { of_.what_.on_reload(); }, of_.what_.reload));
    }
    if (of_.what_.control)
      of_.what_.control->attach(loop_, [this](const ControlRequest& request) { return answer(request); });
    const Status left = peer_.run();
    look_.reset();
    late_.reset();
    if (of_.what_.control) of_.what_.control->detach();
    return end(left);
  }

 private:
  bool comes_back() const { return goes_away_ && !leaves_; }

  void hand_over(Duration patience) {
    peer_.request_drain({.reason = leaves_ ? "" : of_.describe(), .returns = !leaves_});
    if (late_ && patience >= patience_) return;
    patience_ = patience;
    late_ = loop_.after(patience, [this] {
      of_.what_.service.log("warning not_handed_over reason=\"the broker did not take the work away\"");
      peer_.stop();
    });
  }

  void look() {
    const bool is_open = of_.is_open();
    if (leaves_ || is_open) return;
    const bool is_urgent = of_.what_.attendance.is_urgent();
    if (goes_away_ && !(is_urgent && patience_ > kUrgentMax)) return;
    goes_away_ = true;
    of_.what_.service.log(fmt::format("info leaving_off reason=\"{}\"", of_.describe()));
    hand_over(is_urgent ? kUrgentMax : kHandOverMax);
  }

  // The clock that goes on in a sleep tells of it afterwards.
  void look_for_sleep() {
    const Duration asleep = peer::time_asleep(of_.what_.root);
    const Duration slept = asleep - std::exchange(asleep_, asleep);
    if (slept < kSleepMin) return;
    of_.what_.service.log(fmt::format("info woke slept=\"{}\"", format_duration(seconds(slept))));
    peer_.woke(slept);
  }

  void look_again() {
    look_for_sleep();
    look();
    of_.tell_of_work(peer_.activity());
    look_ = loop_.after(kLookEvery, [this] { look_again(); });
  }

  void on_signal(int count) {
    leaves_ = true;
    if (count == 1) {
      say(stderr, "leaving after the work at hand is handed over; again to leave at once\n");
      hand_over(kHandOverMax);
    } else {
      forced_ = true;
      peer_.stop();
    }
  }

  std::string answer(const ControlRequest& request) {
    std::string says = of_.carry_out(request);
    look();
    return says + "; " +
           (goes_away_ ? "what it works on is handed over first" : weft::cli::describe(peer_.activity()));
  }

  Result<std::optional<int>> end(const Status& left) {
    Result<int> result = forced_ ? kExitStopped : kExitOk;
    if (!left) result = fail(left.error());
    if (!peer_.rest(kGrace)) {
      of_.what_.service.log(fmt::format("warning device_left_behind reason=\"it has not answered for {} s\"",
                                        std::chrono::duration_cast<std::chrono::seconds>(kGrace).count()));
      // What it still does ends with the process: who started that starts it again.
      if (result && comes_back())
        result =
            fail(ErrorCode::Unavailable, "to pause, the device would have to answer: start weft join again");
      end_at_once(result);
    }
    if (result && comes_back()) return std::nullopt;
    end_soon(result);
    if (!result) return fail(result.error());
    return std::optional<int>(*result);
  }

  Attender& of_;
  net::Loop loop_;
  peer::PeerService peer_;
  bool forced_ = false, leaves_ = false, goes_away_ = false;
  Duration patience_ = Duration::max();
  Duration asleep_ = peer::time_asleep(of_.what_.root);
  std::unique_ptr<net::Loop::Timer> look_, late_;
};

Result<std::optional<int>> Attender::work() { return Visit(*this).run(); }

}  // namespace

void end_at_once(const Result<int>& result) {
  const int code = end_with(result);
  std::fflush(nullptr);
  std::_Exit(code);
}

Result<int> attend(Attending attending) { return Attender(std::move(attending)).run(); }

}  // namespace weft::cli
