#include "peer/service/prober.h"

#include <algorithm>
#include <array>
#include <utility>

#include "peer/service/bulk.h"

namespace weft::peer {

using proto::ProbeWord;

namespace {
// Whatever the broker says: four times what it asks for.
constexpr uint64_t kBytesMax = 64 << 20;
constexpr Duration kTimeMax = std::chrono::seconds(5), kDeadlineMax = std::chrono::seconds(60);
constexpr uint64_t kPings = 5;
constexpr Duration kPingTime = std::chrono::milliseconds(300);  // and after so long no more
constexpr Duration kWayDeadline = std::chrono::seconds(3);      // for each address, and the relay
constexpr Duration kGoodbye = std::chrono::seconds(1);
constexpr int kRoundTrips = 10;  // of them a probe has more time: a sender takes as many to be at full speed
constexpr uint64_t kFrameMin = 4 << 10;

// What is sent means nothing; TLS makes it look like anything else.
net::SharedBytes zeros(uint64_t size) {
  static const auto kZeros = std::make_shared<const std::array<std::byte, proto::kProbeSizeMax>>();
  return {kZeros, std::span(*kZeros).first(size)};
}
}  // namespace

struct Prober::Probe {
  proto::ProbeLink asked;
  State state = State::Connecting;
  size_t way = 0;  // of the addresses, then the relay
  std::unique_ptr<net::Attempt> attempt{};
  net::ConnectionPtr connection{};
  std::unique_ptr<net::Loop::Timer> deadline{}, measured{};
  std::string problems{};  // of the ways that were tried
  bool relayed = false, reported = false;
  uint64_t pings = 0;
  Instant pinged{}, first_pinged{};
  std::optional<Duration> round_trip{};
  std::optional<ProbeMeter> meter{};
  uint64_t told = 0;  // the last Ask
  uint64_t bytes_received = 0, bytes_sent = 0;
};

Prober::Prober(LinkOptions options, std::function<void(proto::ProbeReport)> on_report)
    : options_(std::move(options)), on_report_(std::move(on_report)) {}

Prober::~Prober() { finish(); }

void Prober::begin(proto::ProbeLink asked) {
  finish();
  probe_ = std::make_shared<Probe>();
  probe_->asked = std::move(asked);
  probe_->asked.bytes_max = std::min(probe_->asked.bytes_max, kBytesMax);
  probe_->asked.time_max = std::min(probe_->asked.time_max, kTimeMax);
  probe_->asked.deadline = std::min(probe_->asked.deadline, kDeadlineMax);
  probe_->deadline = options_.loop->after(probe_->asked.deadline, [this] {
    if (probe_->state != State::Connecting) return fail({ErrorCode::Cancelled, "it took too long"});
    fail({ErrorCode::Timeout,
          (probe_->asked.dials ? "no way to the peer in time" : "the peer did not come") + probe_->problems});
  });
  if (probe_->asked.dials) dial();
}

void Prober::end(const std::string& why) {
  if (probe_) fail({ErrorCode::Cancelled, why});
}

// ---- connecting

net::ConnectOptions Prober::connect_options(const std::string& region) const {
  net::ConnectOptions options;
  options.identity = options_.identity;
  options.expected = probe_->asked.peer;
  options.deadline = std::min(kWayDeadline, probe_->asked.deadline);
  options.may_dial = options_.may_dial;
  if (options_.shape) options.shape = options_.shape(region);
  return options;
}

void Prober::dial() {
  const proto::ProbeLink& asked = probe_->asked;
  for (; probe_->way < asked.addresses.size(); ++probe_->way) {
    const auto endpoint = net::parse_endpoint(asked.addresses[probe_->way]);
    if (!endpoint) continue;
    probe_->attempt = net::connect(
        *options_.loop, *endpoint, connect_options(asked.region),
        [this](Result<net::ConnectionPtr> result) { on_dialled(/*relayed=*/false, std::move(result)); });
    return;
  }
  dial_relay();
}

void Prober::dial_relay() {
  const proto::ProbeLink& asked = probe_->asked;
  net::ConnectOptions connect = connect_options("");
  connect.may_dial = nullptr;  // the owner named the broker
  probe_->attempt = net::connect_by_relay(
      *options_.loop, options_.relay, {asked.relay_ticket}, asked.dials, connect,
      [this](Result<net::ConnectionPtr> result) { on_dialled(/*relayed=*/true, std::move(result)); });
}

void Prober::on_dialled(bool relayed, Result<net::ConnectionPtr> result) {
  const auto attempt = std::move(probe_->attempt);
  if (!result) {
    probe_->problems += "; " + result.error().message;
    if (!probe_->asked.dials) return;  // it may be invited again
    if (relayed) return fail({ErrorCode::Unavailable, "no way to the peer" + probe_->problems});
    ++probe_->way;
    return dial();
  }
  take(*result, relayed);
  (*result)->start(handlers());
  if (probe_->asked.dials) probe_->connection->send(message_frame(proto::ProbeHello{probe_->asked.round}));
}

void Prober::on_invitation(const proto::Secret& ticket) {
  if (probe_ && !probe_->asked.dials && !probe_->connection && !probe_->attempt &&
      probe_->asked.relay_ticket == ticket)
    dial_relay();
}

std::optional<net::Connection::Handlers> Prober::offer(const net::ConnectionPtr& connection,
                                                       const proto::ProbeHello& hello) {
  if (!probe_ || probe_->asked.dials || probe_->connection || probe_->asked.round != hello.round ||
      probe_->asked.peer != connection->remote())
    return std::nullopt;
  probe_->attempt.reset();
  take(connection, /*relayed=*/false);
  probe_->state = State::Serving;
  connection->send(message_frame(hello));
  return handlers();
}

void Prober::take(const net::ConnectionPtr& connection, bool relayed) {
  net::ConnectionLimits limits;
  limits.frame_size_max = proto::kProbeSizeMax;
  connection->set_limits(limits);
  probe_->connection = connection;
  probe_->relayed = relayed;
  probe_->state = State::Greeting;
}

net::Connection::Handlers Prober::handlers() const {
  const std::weak_ptr<Probe> weak = probe_;
  auto* self = const_cast<Prober*>(this);
  return {.on_frame =
              [self, weak](const net::InFrame& frame) {
                if (!weak.expired()) self->on_frame(frame);
              },
          .on_closed =
              [self, weak](const Error& error) {
                if (!weak.expired())
                  self->fail({ErrorCode::Cancelled, "the other peer went: " + error.message});
              }};
}

// ---- what comes

void Prober::on_frame(const net::InFrame& frame) {
  if (frame.kind == static_cast<uint8_t>(proto::FrameKind::Probe)) return on_bytes(frame.size());
  const auto message = frame.kind == static_cast<uint8_t>(proto::FrameKind::Message)
                           ? proto::decode(frame.payload.span())
                           : weft::fail(ErrorCode::InvalidArgument, "a frame that is not for a probe");
  if (!message) return fail(message.error());
  on_message(*message);
}

void Prober::on_message(const proto::Message& message) {
  const auto* hello = std::get_if<proto::ProbeHello>(&message);
  const auto* say = std::get_if<proto::ProbeSay>(&message);
  if (probe_->state == State::Greeting ? hello == nullptr || hello->round != probe_->asked.round
                                       : say == nullptr)
    return fail({ErrorCode::InvalidArgument, std::string(name_of(message)) + " is not for this probe"});
  if (say != nullptr) return on_say(*say);
  if (probe_->asked.dials) return ping();
  probe_->state = State::Serving;  // by the relay
  probe_->connection->send(message_frame(*hello));
}

void Prober::on_say(const proto::ProbeSay& said) {
  switch (said.word) {
    case ProbeWord::Ping:
      return say(ProbeWord::Pong, said.number);
    case ProbeWord::Pong:
      return on_pong(said.number);
    case ProbeWord::Ask:
      return serve(said.number);
    case ProbeWord::Turn:
      return on_turn();
  }
}

// ---- measuring

void Prober::ping() {
  probe_->state = State::Pinging;
  probe_->pinged = options_.loop->now();
  if (probe_->pings == 0) probe_->first_pinged = probe_->pinged;
  say(ProbeWord::Ping, ++probe_->pings);
}

void Prober::on_pong(uint64_t number) {
  if (probe_->state != State::Pinging || number != probe_->pings)
    return fail({ErrorCode::InvalidArgument, "an answer to no ping"});
  const Instant now = options_.loop->now();
  const Duration round_trip = now - probe_->pinged;
  probe_->round_trip = std::min(probe_->round_trip.value_or(round_trip), round_trip);
  if (probe_->pings < kPings && now - probe_->first_pinged < kPingTime) return ping();
  measure();
}

void Prober::measure() {
  const Instant now = options_.loop->now();
  const Duration time_max = probe_->asked.time_max + kRoundTrips * *probe_->round_trip;
  probe_->state = State::Measuring;
  probe_->meter.emplace(
      ProbeMeter::Limits{
          .bytes_max = probe_->asked.bytes_max, .time_max = time_max, .round_trip = *probe_->round_trip},
      now);
  probe_->measured = options_.loop->after(time_max, [this] { end_measuring(); });
  ask();
}

// Not with every frame: once a quarter of what may be under way has come.
void Prober::ask() {
  const uint64_t asked = probe_->meter->asked(), ahead = asked - probe_->meter->received();
  if (asked == probe_->told || (asked - probe_->told < ahead / 4 && asked < probe_->asked.bytes_max)) return;
  probe_->told = asked;
  say(ProbeWord::Ask, asked);
}

void Prober::on_bytes(uint64_t size) {
  probe_->bytes_received += size;
  if (probe_->bytes_received > probe_->told)
    return fail({ErrorCode::InvalidArgument, "it sent more than it was asked for"});
  if (probe_->state != State::Measuring) return;  // the rest of what was asked for
  probe_->meter->on_bytes(size, options_.loop->now());
  if (probe_->meter->is_done(options_.loop->now())) return end_measuring();
  ask();
}

void Prober::end_measuring() {
  probe_->measured.reset();
  if (probe_->meter->received() == 0) return fail({ErrorCode::Timeout, "nothing came"});
  report();
  say(ProbeWord::Turn);
  probe_->state = State::Serving;
  if (!probe_->asked.dials) finish(kGoodbye);
}

// ---- the other's turn

void Prober::serve(uint64_t asked) {
  if (probe_->state != State::Serving || asked > probe_->asked.bytes_max || asked < probe_->bytes_sent)
    return fail({ErrorCode::InvalidArgument, "it asks for bytes that it may not have"});
  while (probe_->bytes_sent < asked) {
    const uint64_t rest = asked - probe_->bytes_sent;
    const uint64_t size = std::min(rest, std::clamp<uint64_t>(rest / 4, kFrameMin, proto::kProbeSizeMax));
    probe_->connection->send(
        {.kind = static_cast<uint8_t>(proto::FrameKind::Probe), .head = {}, .body = zeros(size)});
    probe_->bytes_sent += size;
  }
}

void Prober::on_turn() {
  if (probe_->state != State::Serving || probe_->asked.dials != probe_->reported)
    return fail({ErrorCode::InvalidArgument, "it is not its turn"});
  if (probe_->asked.dials) return finish();
  ping();
}

// ---- the end

void Prober::say(ProbeWord word, uint64_t number) {
  probe_->connection->send(message_frame(proto::ProbeSay{word, number}));
}

void Prober::report() {
  probe_->reported = true;
  on_report_({.round = probe_->asked.round,
              .peer = probe_->asked.peer,
              .bytes_per_second = probe_->meter->bytes_per_second(),
              .round_trip = *probe_->round_trip,
              .relayed = probe_->relayed});
}

void Prober::fail(const Error& error) {
  if (!probe_->reported)
    on_report_({.round = probe_->asked.round, .peer = probe_->asked.peer, .failure = error});
  finish();
}

void Prober::finish(Duration goodbye) {
  const ProbePtr probe = std::exchange(probe_, nullptr);
  if (probe && probe->connection) probe->connection->close(goodbye);
}

}  // namespace weft::peer
