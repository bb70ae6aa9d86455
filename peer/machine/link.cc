#include "peer/machine/link.h"

#include <algorithm>
#include <utility>

namespace weft::peer {

using namespace link_effects;

namespace {
constexpr Duration kAsleep = std::chrono::seconds(2);  // between two ticks: this process did not run

// Who dialled hears LinkReady; through the relay the other side introduces itself.
std::optional<LinkGreeting> greeting_in(const proto::Message& message, const proto::LinkRoute& route,
                                        proto::JobNumber run, proto::PlanVersion plan_version) {
  const auto* ready = std::get_if<proto::LinkReady>(&message);
  const auto* hello = std::get_if<proto::LinkHello>(&message);
  if (route.dials && ready != nullptr) return LinkGreeting{ready->received, ready->streams, ready->session};
  const bool is_of_link = !route.dials && hello != nullptr && hello->run == run &&
                          hello->plan_version == plan_version && hello->seat == route.seat;
  return is_of_link ? std::optional(LinkGreeting{hello->received, hello->streams, 0}) : std::nullopt;
}

bool is_between_local_replicas(const proto::AssignStage& assignment, const plan::Seat& other) {
  return assignment.local && other.replica != assignment.seat.replica;
}
}  // namespace

LinkMachine::LinkMachine(Options options, const proto::AssignStage& assignment, proto::LinkRoute route,
                         LinkOutbox& outbox)
    : options_(std::move(options)),
      run_(assignment.run),
      plan_version_(assignment.plan_version),
      seat_(assignment.seat),
      is_between_replicas_(is_between_local_replicas(assignment, route.seat)),
      route_(std::move(route)),
      outbox_(outbox),
      dialling_(route_.dials, route_.addresses) {}

proto::LinkHello LinkMachine::hello() const {
  return {.run = run_,
          .plan_version = plan_version_,
          .seat = seat_,
          .received = receipts_.received(),
          .streams = options_.streams};
}

proto::LinkReady LinkMachine::ready() const {
  return {receipts_.received(), options_.streams, session_.number};
}

// ---- connecting

LinkMachine::Effects LinkMachine::start(Instant now) {
  Effects effects;
  since_ = ticked_ = now;
  if (route_.dials) dial(now, /*over_relay=*/false, effects);
  return effects;
}

void LinkMachine::dial(Instant now, bool over_relay, Effects& effects) {
  dialled_ = now;
  std::string address = dialling_.begin(over_relay);
  effects.emplace_back(Dial{std::move(address), dialling_.deadline(options_.times, was_up_)});
}

void LinkMachine::dial_later(Effects& effects) {
  if (failed_ || dialling_.is_under_way() || at_.up || at_.greeting) return;
  if (!dialling_.goes_by_itself()) return;  // the other side comes
  wakes_ = true;
  effects.emplace_back(Wake{dialling_.pause(options_.times.retry_delay_max)});
}

LinkMachine::Effects LinkMachine::on_wake(Instant now) {
  Effects effects;
  if (!std::exchange(wakes_, false) || failed_ || dialling_.is_under_way() || at_.up || at_.greeting)
    return effects;
  dial(now, /*over_relay=*/!route_.dials, effects);
  return effects;
}

// The other side waits at the relay, so whatever connection there is has ended for it.
LinkMachine::Effects LinkMachine::on_invited(Instant now, const proto::Secret& ticket) {
  Effects effects;
  if (!failed_ && !route_.dials && !dialling_.is_under_way() && route_.relay_ticket == ticket)
    dial(now, /*over_relay=*/true, effects);
  return effects;
}

LinkMachine::Effects LinkMachine::on_dialled(Instant now, const Result<uint64_t>& connection) {
  Effects effects;
  if (!dialling_.end()) {
    if (connection) effects.emplace_back(Close{*connection});
    return effects;
  }
  if (!connection) {
    dialling_.fail(connection.error().message);
    dial_later(effects);
    return effects;
  }
  close_greeting(effects);
  at_.greeting = Channel{*connection, dialling_.is_over_relay(), now};
  greeted_ = now;
  // Who dials introduces itself, also through the relay.
  if (!route_.dials) return effects;
  (void)receipts_.tell_received();
  effects.emplace_back(Say{*connection, hello()});
  return effects;
}

bool LinkMachine::wants(const PeerId& who, const proto::LinkHello& hello) const {
  return hello.run == run_ && hello.plan_version == plan_version_ && hello.seat == route_.seat &&
         !route_.dials && route_.peer == who;
}

LinkMachine::Effects LinkMachine::on_accepted(Instant now, uint64_t connection,
                                              const proto::LinkHello& hello) {
  Effects effects;
  const bool is_taken =
      !failed_ && (hello.stream != 0 ? accept_stream(now, connection, hello, effects)
                                     : set_up(now, {connection, /*relayed=*/false, now},
                                              {hello.received, hello.streams, 0}, /*answers=*/true, effects));
  if (!is_taken) effects.emplace_back(Close{connection});
  return effects;
}

// A new connection takes the place of the one before: its channel is the newest that the other side knows of.
bool LinkMachine::set_up(Instant now, Channel channel, const Greeting& theirs, bool answers,
                         Effects& effects) {
  const bool in_pieces = options_.streams > 0 && theirs.streams > 0;
  if (was_up_ && in_pieces != session_.in_pieces) {
    dialling_.note("greeting", "it says otherwise than before whether it knows pieces");
    return false;
  }
  if (const Status resumed = outbox_.resume(theirs.received); !resumed) {
    dialling_.note("greeting", resumed.error().message);
    return false;
  }
  if (at_.is_greeting(channel.number)) at_.greeting.reset();
  end_session(now, effects);
  close_greeting(effects);
  if (dialling_.end()) effects.emplace_back(StopDialling{});
  wakes_ = false;
  const bool first = !was_up_;
  at_.up = channel;
  session_ = {.number = answers ? options_.draw_session() : theirs.session,
              .streams = in_pieces ? std::min(options_.streams, theirs.streams) : 1,
              .in_pieces = in_pieces,
              .began = now};
  was_up_ = true;
  dialling_.came_up(channel.relayed);
  acknowledged_ = now;
  if (answers) {
    (void)receipts_.tell_received();
    effects.emplace_back(Say{channel.number, ready()});
  }
  effects.emplace_back(Begin{channel.number, first});
  open_streams(effects);
  return true;
}

void LinkMachine::on_greeting(Instant now, const proto::Message& message, Effects& effects) {
  const std::optional<Greeting> theirs = greeting_in(message, route_, run_, plan_version_);
  if (!theirs)
    return fail_with({ErrorCode::InvalidArgument, std::string(name_of(message)) + " does not begin a link"},
                     effects);
  // Who dials has waited two round trips for the connection and one for this answer, if it came at once.
  round_trip_ = std::min((greeted_ - dialled_) / 2, now - greeted_);
  if (set_up(now, *at_.greeting, *theirs, /*answers=*/!route_.dials, effects)) return;
  close_greeting(effects);
  dialling_.count_try();
  dial_later(effects);
}

// ---- further connections

// Who dials sees how far away the other side is. Not over the relay, which everybody shares.
void LinkMachine::open_streams(Effects& effects) {
  const std::string* address = dialling_.address();
  if (!route_.dials || at_.up->relayed || session_.streams < 2 || round_trip_ < options_.times.far ||
      breaks_.are_too_many() || address == nullptr)
    return;
  for (uint32_t index = 1; index < session_.streams; ++index) {
    at_.further.dial(index);
    effects.emplace_back(DialStream{index, *address});
  }
}

LinkMachine::Effects LinkMachine::on_stream_dialled(Instant now, uint32_t stream,
                                                    const Result<uint64_t>& connection) {
  Effects effects;
  if (failed_ || !at_.further.awaits(stream)) {
    if (connection) effects.emplace_back(Close{*connection});
    return effects;
  }
  if (!connection) {
    at_.further.give_up(stream);
    return effects;
  }
  at_.further.connect(stream, *connection, now);
  proto::LinkHello introduction = hello();
  introduction.stream = stream;
  introduction.session = session_.number;
  effects.emplace_back(Say{*connection, introduction});
  return effects;
}

void LinkMachine::on_stream_ready(uint64_t connection, const proto::Message& message, Effects& effects) {
  const auto* ready = std::get_if<proto::LinkReady>(&message);
  if (ready == nullptr || ready->session != session_.number)
    return fail_with(
        {ErrorCode::InvalidArgument, std::string(name_of(message)) + " does not begin a further connection"},
        effects);
  at_.further.set_up(connection);
  effects.emplace_back(BeginStream{connection});
}

bool LinkMachine::accept_stream(Instant now, uint64_t connection, const proto::LinkHello& hello,
                                Effects& effects) {
  if (!at_.up || !session_.in_pieces || hello.session != session_.number ||
      hello.stream >= session_.streams || at_.further.contains(hello.stream))
    return false;
  at_.further.accept(hello.stream, connection, now);
  effects.emplace_back(Say{connection, ready()});
  effects.emplace_back(BeginStream{connection});
  return true;
}

// ---- what comes

LinkMachine::Effects LinkMachine::on_message(Instant now, uint64_t connection,
                                             const proto::Message& message) {
  Effects effects;
  if (failed_ || at_.find(connection) == nullptr) return effects;
  if (at_.is_greeting(connection)) {
    on_greeting(now, message, effects);
    return effects;
  }
  if (!carries(connection)) {
    on_stream_ready(connection, message, effects);
    return effects;
  }
  const auto* ack = std::get_if<proto::LinkAck>(&message);
  if (ack == nullptr) {
    fail_with({ErrorCode::InvalidArgument, std::string(name_of(message)) + " is not for a link"}, effects);
    return effects;
  }
  dialling_.something_came();
  if (const Status taken = outbox_.acknowledged(ack->received); !taken) fail_with(taken.error(), effects);
  return effects;
}

void LinkMachine::on_bytes(Instant now, uint64_t connection) {
  if (Channel* channel = at_.find(connection)) channel->heard = now;
}

LinkMachine::Effects LinkMachine::on_tensor(Instant now, uint64_t number, uint64_t bytes) {
  Effects effects;
  dialling_.something_came();
  if (receipts_.count_received(number, bytes) && at_.up && !failed_) acknowledge(now, effects);
  return effects;
}

void LinkMachine::acknowledge(Instant now, Effects& effects) {
  acknowledged_ = now;
  effects.emplace_back(Say{at_.up->number, proto::LinkAck{receipts_.tell_received()}});
}

// ---- the end of a connection, and of a link

void LinkMachine::close_greeting(Effects& effects) {
  if (at_.greeting) effects.emplace_back(Close{at_.greeting->number});
  at_.greeting.reset();
}

// All of them end; what has not come whole goes again over the next ones.
void LinkMachine::end_session(Instant now, Effects& effects) {
  if (at_.up) breaks_.ended(!at_.further.up().empty(), now - session_.began);
  if (at_.up) effects.emplace_back(EndSession{});
  for (const uint64_t connection : at_.further.connections()) effects.emplace_back(Close{connection});
  at_.further.clear();
  if (at_.up) effects.emplace_back(Close{at_.up->number});
  at_.up.reset();
  session_.number = 0;
}

LinkMachine::Effects LinkMachine::on_lost(Instant now, uint64_t connection, const Error& error) {
  Effects effects;
  if (!failed_) lose(now, connection, error, effects);
  return effects;
}

void LinkMachine::lose(Instant now, uint64_t connection, const Error& error, Effects& effects) {
  if (at_.is_greeting(connection)) {
    close_greeting(effects);
    dialling_.go_on();
  } else if (carries(connection)) {
    end_session(now, effects);
    since_ = now;
  } else {
    // A further connection that did not come about: the others do its work.
    at_.further.drop(connection);
    effects.emplace_back(Close{connection});
    return;
  }
  dialling_.count_try();
  dialling_.note("connection", error.message);
  dial_later(effects);
}

// Who slept has heard nothing, and cannot blame the others for it.
void LinkMachine::wake_from_sleep(Instant now) {
  const Duration slept = now - std::exchange(ticked_, now);
  if (slept <= kAsleep) return;
  since_ += slept;
  at_.excuse(now, slept);
}

Duration LinkMachine::silence_allowed(uint64_t connection) const {
  if (carries(connection)) return options_.times.silence_deadline;
  return was_up_ ? dialling_.deadline(options_.times, was_up_) : options_.times.ready_deadline;
}

void LinkMachine::lose_silent(Instant now, Effects& effects) {
  std::vector<std::pair<uint64_t, Duration>> silent;
  for (const uint64_t connection : at_.all())
    if (const Duration allowed = silence_allowed(connection); now - at_.find(connection)->heard > allowed)
      silent.emplace_back(connection, allowed);
  for (const auto& [connection, deadline] : silent)
    if (at_.find(connection) != nullptr)
      lose(now, connection,
           {ErrorCode::Timeout,
            "nothing came for " + std::to_string(static_cast<int>(seconds(deadline))) + " s"},
           effects);
}

LinkMachine::Effects LinkMachine::on_tick(Instant now) {
  Effects effects;
  wake_from_sleep(now);
  if (failed_) return effects;
  lose_silent(now, effects);
  if (at_.up) {
    if (now - acknowledged_ < options_.times.ack_interval) return effects;
    acknowledge(now, effects);
    // Over each of them: any may carry nothing else for a while.
    for (const uint64_t connection : at_.further.up())
      effects.emplace_back(Say{connection, proto::LinkAck{receipts_.received()}});
    return effects;
  }
  const LinkTimes& times = options_.times;
  if (was_up_ && is_between_replicas_ && outbox_.is_empty()) since_ = now;
  const Duration heals = is_between_replicas_ ? times.heal_deadline_of_replicas : times.heal_deadline;
  if (now - since_ > (was_up_ ? heals : times.ready_deadline))
    fail_with({ErrorCode::Timeout, (was_up_ ? "the connection was lost and did not come back in time: "
                                            : "the link did not come up in time: ") +
                                       dialling_.problems()},
              effects);
  return effects;
}

LinkMachine::Effects LinkMachine::refuse(const Error& error) {
  Effects effects;
  fail_with(error, effects);
  return effects;
}

void LinkMachine::fail_with(const Error& error, Effects& effects) {
  if (std::exchange(failed_, true)) return;
  effects.emplace_back(Fail{error});
}

}  // namespace weft::peer
