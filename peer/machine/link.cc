#include "peer/machine/link.h"

#include <algorithm>
#include <utility>

namespace weft::peer {

namespace {
constexpr Duration kRetryDelay = std::chrono::milliseconds(50);
constexpr Duration kTurnMin = std::chrono::milliseconds(1500);  // a handshake through a slow line
constexpr Duration kAsleep = std::chrono::seconds(2);           // between two ticks: this process did not run
// Whatever breaks connections soon after there are several: not for the rest of the run.
constexpr uint32_t kBrokenSessionsMax = 3;
constexpr Duration kLasts = std::chrono::minutes(1);

std::string text_of(const std::map<std::string, std::string>& problems) {
  std::string text;
  for (const auto& [where, what] : problems) text += (text.empty() ? "" : "; ") + where + ": " + what;
  return text.empty() ? "nobody came" : text;
}
}  // namespace

LinkMachine::LinkMachine(Options options, const proto::AssignStage& assignment, proto::LinkRoute route,
                         LinkOutbox& outbox)
    : options_(std::move(options)),
      run_(assignment.run),
      plan_version_(assignment.plan_version),
      seat_(assignment.seat),
      route_(std::move(route)),
      outbox_(outbox) {}

proto::LinkHello LinkMachine::hello() const {
  return {.run = run_,
          .plan_version = plan_version_,
          .seat = seat_,
          .received = receipts_.received(),
          .streams = options_.streams};
}

proto::LinkReady LinkMachine::ready() const { return {receipts_.received(), options_.streams, session_}; }

bool LinkMachine::carries(uint64_t connection) const {
  if (up_ && up_->number == connection) return true;
  return std::any_of(further_.begin(), further_.end(), [&](const auto& entry) {
    return entry.second.is_up && entry.second.channel->number == connection;
  });
}

LinkMachine::Channel* LinkMachine::find(uint64_t connection) {
  for (std::optional<Channel>* channel : {&up_, &greeting_})
    if (*channel && (*channel)->number == connection) return &**channel;
  Stream* stream = find_stream(connection);
  return stream != nullptr ? &*stream->channel : nullptr;
}

LinkMachine::Stream* LinkMachine::find_stream(uint64_t connection) {
  for (auto& [index, stream] : further_)
    if (stream.channel && stream.channel->number == connection) return &stream;
  return nullptr;
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
  dials_ = true;
  dials_relay_ = over_relay || address_ >= route_.addresses.size();
  effects.emplace_back(Dial{dials_relay_ ? std::string() : route_.addresses[address_], dial_deadline()});
}

Duration LinkMachine::dial_deadline() const {
  const LinkTimes& times = options_.times;
  if (!was_up_) return times.address_deadline;
  const Duration turn = times.heal_deadline / (2 * static_cast<int64_t>(addresses()));
  return std::clamp(turn, std::min(kTurnMin, times.address_deadline), times.address_deadline);
}

// Every address once at once, then with growing pauses.
void LinkMachine::dial_later(Effects& effects) {
  if (failed_ || dials_ || up_ || greeting_) return;
  if (!route_.dials && !relayed_) return;  // the other side comes
  const size_t rounds = tries_ / addresses();
  const Duration pause = kRetryDelay * (1 << std::min<size_t>(rounds, 10));
  const Duration delay = rounds == 0 ? Duration::zero() : std::min(options_.times.retry_delay_max, pause);
  wakes_ = true;
  effects.emplace_back(Wake{delay});
}

LinkMachine::Effects LinkMachine::on_wake(Instant now) {
  Effects effects;
  if (!std::exchange(wakes_, false) || failed_ || dials_ || up_ || greeting_) return effects;
  dial(now, /*over_relay=*/!route_.dials, effects);
  return effects;
}

// The other side waits at the relay, so whatever connection there is has ended for it.
LinkMachine::Effects LinkMachine::on_invited(Instant now, const proto::Secret& ticket) {
  Effects effects;
  if (!failed_ && !route_.dials && !dials_ && route_.relay_ticket == ticket)
    dial(now, /*over_relay=*/true, effects);
  return effects;
}

LinkMachine::Effects LinkMachine::on_dialled(Instant now, const Result<uint64_t>& connection) {
  Effects effects;
  if (!std::exchange(dials_, false)) {
    if (connection) effects.emplace_back(Close{*connection});
    return effects;
  }
  if (!connection) {
    problems_[dials_relay_ ? "relay" : route_.addresses[address_]] = connection.error().message;
    next_address();
    ++tries_;
    dial_later(effects);
    return effects;
  }
  close_greeting(effects);
  greeting_ = Channel{*connection, dials_relay_, now};
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
  if (failed_) {
    effects.emplace_back(Close{connection});
  } else if (hello.stream != 0) {
    accept_stream(now, connection, hello, effects);
  } else if (!set_up(now, {connection, /*relayed=*/false, now}, {hello.received, hello.streams, 0},
                     /*answers=*/true, effects)) {
    effects.emplace_back(Close{connection});
  }
  return effects;
}

// A new connection takes the place of the one before: its channel is the newest that the other side knows of.
bool LinkMachine::set_up(Instant now, Channel channel, const Greeting& theirs, bool answers,
                         Effects& effects) {
  const bool in_pieces = options_.streams > 0 && theirs.streams > 0;
  if (was_up_ && in_pieces != in_pieces_) {
    problems_["greeting"] = "it says otherwise than before whether it knows pieces";
    return false;
  }
  if (const Status resumed = outbox_.resume(theirs.received); !resumed) {
    problems_["greeting"] = resumed.error().message;
    return false;
  }
  if (greeting_ && greeting_->number == channel.number) greeting_.reset();
  end_session(now, effects);
  close_greeting(effects);
  if (std::exchange(dials_, false)) effects.emplace_back(StopDialling{});
  wakes_ = false;
  const bool first = !was_up_;
  up_ = channel;
  in_pieces_ = in_pieces;
  streams_ = in_pieces ? std::min(options_.streams, theirs.streams) : 1;
  session_began_ = now;
  was_up_ = true;
  relayed_ = channel.relayed;
  problems_.clear();
  acknowledged_ = now;
  session_ = theirs.session;
  if (answers) {
    session_ = options_.draw_session();
    (void)receipts_.tell_received();
    effects.emplace_back(Say{channel.number, ready()});
  }
  effects.emplace_back(Begin{channel.number, first});
  open_streams(effects);
  return true;
}

void LinkMachine::on_greeting(Instant now, const proto::Message& message, Effects& effects) {
  const auto* ready = std::get_if<proto::LinkReady>(&message);
  const auto* hello = std::get_if<proto::LinkHello>(&message);  // through the relay
  const bool greets = route_.dials ? ready != nullptr
                                   : hello != nullptr && hello->run == run_ &&
                                         hello->plan_version == plan_version_ && hello->seat == route_.seat;
  if (!greets)
    return fail_with({ErrorCode::InvalidArgument, std::string(name_of(message)) + " does not begin a link"},
                     effects);
  const Greeting theirs = ready != nullptr ? Greeting{ready->received, ready->streams, ready->session}
                                           : Greeting{hello->received, hello->streams, 0};
  // Who dials has waited two round trips for the connection and one for this answer, if it came at once.
  round_trip_ = std::min((greeted_ - dialled_) / 2, now - greeted_);
  if (set_up(now, *greeting_, theirs, /*answers=*/!route_.dials, effects)) return;
  close_greeting(effects);
  ++tries_;
  dial_later(effects);
}

// ---- further connections

// Who dials sees how far away the other side is. Not over the relay, which everybody shares.
void LinkMachine::open_streams(Effects& effects) {
  if (!route_.dials || up_->relayed || streams_ < 2 || round_trip_ < options_.times.far ||
      broken_sessions_ >= kBrokenSessionsMax || address_ >= route_.addresses.size())
    return;
  for (uint32_t index = 1; index < streams_; ++index) {
    further_[index] = {};
    effects.emplace_back(DialStream{index, route_.addresses[address_]});
  }
}

LinkMachine::Effects LinkMachine::on_stream_dialled(Instant now, uint32_t stream,
                                                    const Result<uint64_t>& connection) {
  Effects effects;
  const auto at = further_.find(stream);
  if (failed_ || at == further_.end() || at->second.channel) {
    if (connection) effects.emplace_back(Close{*connection});
    return effects;
  }
  if (!connection) {
    further_.erase(at);
    return effects;
  }
  at->second.channel = Channel{*connection, /*relayed=*/false, now};
  proto::LinkHello introduction = hello();
  introduction.stream = stream;
  introduction.session = session_;
  effects.emplace_back(Say{*connection, introduction});
  return effects;
}

void LinkMachine::on_stream_ready(Stream& stream, const proto::Message& message, Effects& effects) {
  const auto* ready = std::get_if<proto::LinkReady>(&message);
  if (ready == nullptr || ready->session != session_)
    return fail_with(
        {ErrorCode::InvalidArgument, std::string(name_of(message)) + " does not begin a further connection"},
        effects);
  stream.is_up = true;
  effects.emplace_back(BeginStream{stream.channel->number});
}

void LinkMachine::accept_stream(Instant now, uint64_t connection, const proto::LinkHello& hello,
                                Effects& effects) {
  if (!up_ || !in_pieces_ || hello.session != session_ || hello.stream >= streams_ ||
      further_.contains(hello.stream)) {
    effects.emplace_back(Close{connection});
    return;
  }
  further_[hello.stream] = {Channel{connection, /*relayed=*/false, now}, /*is_up=*/true};
  effects.emplace_back(Say{connection, ready()});
  effects.emplace_back(BeginStream{connection});
}

// ---- what comes

LinkMachine::Effects LinkMachine::on_message(Instant now, uint64_t connection,
                                             const proto::Message& message) {
  Effects effects;
  if (failed_ || find(connection) == nullptr) return effects;
  if (greeting_ && greeting_->number == connection) {
    on_greeting(now, message, effects);
    return effects;
  }
  if (Stream* stream = find_stream(connection); stream != nullptr && !stream->is_up) {
    on_stream_ready(*stream, message, effects);
    return effects;
  }
  const auto* ack = std::get_if<proto::LinkAck>(&message);
  if (ack == nullptr) {
    fail_with({ErrorCode::InvalidArgument, std::string(name_of(message)) + " is not for a link"}, effects);
    return effects;
  }
  tries_ = 0;
  if (const Status taken = outbox_.acknowledged(ack->received); !taken) fail_with(taken.error(), effects);
  return effects;
}

void LinkMachine::on_bytes(Instant now, uint64_t connection) {
  if (Channel* channel = find(connection)) channel->heard = now;
}

LinkMachine::Effects LinkMachine::on_tensor(Instant now, uint64_t number, uint64_t bytes) {
  Effects effects;
  tries_ = 0;
  if (receipts_.count_received(number, bytes) && up_ && !failed_) acknowledge(now, effects);
  return effects;
}

void LinkMachine::acknowledge(Instant now, Effects& effects) {
  acknowledged_ = now;
  effects.emplace_back(Say{up_->number, proto::LinkAck{receipts_.tell_received()}});
}

// ---- the end of a connection, and of a link

void LinkMachine::close_greeting(Effects& effects) {
  if (greeting_) effects.emplace_back(Close{greeting_->number});
  greeting_.reset();
}

// All of them end; what has not come whole goes again over the next ones.
void LinkMachine::end_session(Instant now, Effects& effects) {
  const bool had_further =
      std::any_of(further_.begin(), further_.end(), [](const auto& entry) { return entry.second.is_up; });
  const bool lasted = now - session_began_ >= kLasts;
  if (up_) broken_sessions_ = had_further && !lasted ? broken_sessions_ + 1 : 0;
  if (up_) effects.emplace_back(EndSession{});
  for (const auto& [index, stream] : further_)
    if (stream.channel) effects.emplace_back(Close{stream.channel->number});
  further_.clear();
  if (up_) effects.emplace_back(Close{up_->number});
  up_.reset();
  session_ = 0;
}

LinkMachine::Effects LinkMachine::on_lost(Instant now, uint64_t connection, const Error& error) {
  Effects effects;
  if (!failed_) lose(now, connection, error, effects);
  return effects;
}

void LinkMachine::lose(Instant now, uint64_t connection, const Error& error, Effects& effects) {
  if (greeting_ && greeting_->number == connection) {
    close_greeting(effects);
    next_address();
  } else if (carries(connection)) {
    end_session(now, effects);
    since_ = now;
  } else {
    // A further connection that did not come about: the others do its work.
    std::erase_if(further_, [&](const auto& entry) {
      return entry.second.channel && entry.second.channel->number == connection;
    });
    effects.emplace_back(Close{connection});
    return;
  }
  ++tries_;
  problems_["connection"] = error.message;
  dial_later(effects);
}

LinkMachine::Effects LinkMachine::on_tick(Instant now) {
  Effects effects;
  // Who slept has heard nothing, and cannot blame the others for it.
  if (const Duration slept = now - ticked_; slept > kAsleep) {
    since_ += slept;
    for (std::optional<Channel>* channel : {&up_, &greeting_})
      if (*channel) (*channel)->heard = std::min(now, (*channel)->heard + slept);
    for (auto& [index, stream] : further_)
      if (stream.channel) stream.channel->heard = std::min(now, stream.channel->heard + slept);
  }
  ticked_ = now;
  if (failed_) return effects;
  std::vector<std::pair<uint64_t, Duration>> silent;
  const auto listen = [&](const std::optional<Channel>& channel) {
    if (!channel) return;
    // A neighbour may not have its stage yet, the first time.
    const Duration deadline = carries(channel->number) ? options_.times.silence_deadline
                              : was_up_                ? dial_deadline()
                                                       : options_.times.ready_deadline;
    if (now - channel->heard > deadline) silent.emplace_back(channel->number, deadline);
  };
  listen(up_);
  listen(greeting_);
  for (const auto& [index, stream] : further_) listen(stream.channel);
  for (const auto& [connection, deadline] : silent)
    if (find(connection) != nullptr)
      lose(now, connection,
           {ErrorCode::Timeout,
            "nothing came for " + std::to_string(static_cast<int>(seconds(deadline))) + " s"},
           effects);
  if (up_) {
    if (now - acknowledged_ < options_.times.ack_interval) return effects;
    acknowledge(now, effects);
    // Over each of them: any may carry nothing else for a while.
    for (const auto& [index, stream] : further_)
      if (stream.is_up)
        effects.emplace_back(Say{stream.channel->number, proto::LinkAck{receipts_.received()}});
    return effects;
  }
  if (now - since_ > (was_up_ ? options_.times.heal_deadline : options_.times.ready_deadline))
    fail_with({ErrorCode::Timeout, (was_up_ ? "the connection was lost and did not come back in time: "
                                            : "the link did not come up in time: ") +
                                       text_of(problems_)},
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
