#include "peer/service/peer_service.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "peer/service/peer_stage.h"
#include "security/token.h"

namespace weft::peer {

using proto::Message;

struct PeerService::Arrival {
  net::ConnectionPtr connection;
  std::optional<proto::LinkHello> hello;
  Instant since;
  std::function<void(net::InFrame)> on_frame;
  std::function<void(const Error&)> on_closed;
};

namespace {
constexpr Duration kTickInterval = std::chrono::milliseconds(250);
constexpr Duration kTickMin = std::chrono::milliseconds(1);
constexpr Duration kArrivalDeadline = std::chrono::seconds(30);
constexpr size_t kArrivalsMax = 256;
template <typename... F>
struct Overloaded : F... {
  using F::operator()...;
};
}  // namespace

PeerService::PeerService(net::Loop& loop, PeerServiceOptions options)
    : loop_(loop), options_(std::move(options)) {}

PeerService::~PeerService() {
  stage_.reset();
  upload_.reset();
  if (compute_) {
    // The backend ends on the thread that made it.
    compute_->post(
        [backend = std::make_shared<std::unique_ptr<Backend>>(std::move(backend_))] { backend->reset(); });
    compute_.reset();
  }
}

Status PeerService::open() {
  if (options_.listen) {
    net::ListenOptions listen;
    listen.identity = options_.identity;
    WEFT_TRY(listener_,
             net::Listener::open(loop_, *options_.listen, listen, [this](net::ConnectionPtr connection) {
               on_accepted(std::move(connection));
             }));
    const std::string address =
        options_.advertise.empty() ? net::to_string(listener_->endpoint()) : options_.advertise;
    options_.hello.device->addresses = {address};
    log("info listening address=" + net::to_string(listener_->endpoint()) + " advertised=" + address);
  }
  std::array<uint8_t, 16> random{};
  security::fill_random(random);
  PeerOptions options;
  std::memcpy(&options_.hello.instance, random.data(), 8);
  std::memcpy(&options.session.seed, random.data() + 8, 8);
  options.session.hello = options_.hello;
  options.orphan_deadline = options_.orphan_deadline;
  peer_.emplace(std::move(options));
  compute_ = std::make_unique<net::Worker>();
  upload_ = std::make_unique<net::Worker>();
  return {};
}

Status PeerService::run() {
  WEFT_TRY_STATUS(open());
  compute_->post([this] {
    auto made = options_.make_backend();
    loop_.post([this, backend = std::make_shared<Result<std::unique_ptr<Backend>>>(std::move(made))] {
      if (!*backend) {
        result_ = fail((*backend).error());
        return loop_.stop();
      }
      backend_ = std::move(**backend);
      carry_out(peer_->start(loop_.now()));
      tick();
    });
  });
  loop_.run();
  timer_.reset();
  carrying_out_ = true;  // nothing is wanted any more
  drop_runner();
  close_links();
  if (control_) control_->close(std::chrono::seconds(1));
  close_bulk({ErrorCode::Cancelled, "the peer leaves"});
  return result_;
}

void PeerService::request_drain() {
  loop_.post([this] {
    if (peer_) carry_out(peer_->request_drain(loop_.now()));
  });
}

void PeerService::stop() { loop_.stop(); }

void PeerService::tick() {
  timer_.reset();
  carry_out(peer_->on_tick(loop_.now(), options_.memory_free ? options_.memory_free() : Bytes{}));
  if (stage_) stage_->links->on_tick();
  for (const auto& arrival : std::vector(arrivals_))
    if (loop_.now() - arrival->since > kArrivalDeadline) drop_arrival(arrival);
  arm_timer();
}

// The machine's deadlines are kept more exactly than by the ticks.
void PeerService::arm_timer() {
  const Instant now = loop_.now();
  Instant at = now + kTickInterval;
  if (const auto deadline = peer_->next_deadline(now)) at = std::clamp(*deadline, now + kTickMin, at);
  if (timer_ && timer_at_ <= at) return;
  timer_at_ = at;
  timer_ = loop_.after(at - now, [this] { tick(); });
}

void PeerService::carry_out(PeerEffects effects) {
  for (PeerEffect& effect : effects) effects_.push_back(std::move(effect));
  if (carrying_out_) return;
  carrying_out_ = true;
  while (!effects_.empty()) {
    PeerEffect effect = std::move(effects_.front());
    effects_.pop_front();
    carry_out_one(effect);
  }
  carrying_out_ = false;
  if (timer_) arm_timer();
}

void PeerService::carry_out_one(PeerEffect& effect) {
  std::visit(Overloaded{
                 [&](ConnectToBroker&) { connect_control(); },
                 [&](DropBroker&) {
                   drop_control({ErrorCode::Unavailable, "the broker was given up"});
                 },
                 [&](TellBroker& say) { tell(std::move(say.message)); },
                 [&](Leave& leave) {
                   result_ = leave.why;
                   loop_.stop();
                 },
                 [&](Say& say) { log(say.line); },
                 [&](OpenLinks& open) { open_links(open); },
                 [&](CloseLinks&) { close_links(); },
                 [&](InviteLink& invite) {
                   if (stage_) stage_->links->on_invitation(invite.ticket);
                 },
                 [&](FetchBlob& fetch) { fetch_blob(fetch); },
                 [&](ForgetBlobs& forget) {
                   for (const Digest& sha256 : forget.blobs) blobs_.erase(sha256);
                 },
                 [&](MakeRunner& make) { make_runner(make); },
                 [&](DropRunner&) { drop_runner(); },
                 [&](RunTask& run) { run_task(run.task); },
                 [&](FetchData& fetch) { fetch_data(fetch); },
                 [&](DropMicrobatches& drop) {
                   for (const MicrobatchKey& key : drop.keys) {
                     stage_->tensors.erase(key);
                     stage_->data.erase(key);
                   }
                 },
                 [&](OfferBlobs& blobs) { offer(blobs); },
                 [&](UploadBlob& blob) { put(blob); },
             },
             effect);
}

// ---- the control connection
// --------------------------------------------------------------------------------------

void PeerService::connect_control() {
  net::ConnectOptions options;
  options.identity = options_.identity;
  options.expected = options_.broker_key;
  if (options_.shape) options.shape = options_.shape("");
  control_attempt_ = net::connect(loop_, options_.broker, options, [this](Result<net::ConnectionPtr> result) {
    if (!result) return carry_out(peer_->on_connect_failed(loop_.now(), result.error()));
    control_ = std::move(*result);
    net::ConnectionLimits limits;
    limits.frame_size_max = proto::kMessageSizeMax;
    control_->set_limits(limits);
    control_->start({.on_frame = [this](net::InFrame frame) { on_control_frame(frame); },
                     .on_closed =
                         [this](const Error& error) {
                           carry_out(peer_->on_lost(loop_.now(), error));
                           drop_control(error);
                         }});
    carry_out(peer_->on_connected(loop_.now()));
  });
}

void PeerService::drop_control(const Error& error) {
  if (control_) control_->close();
  control_.reset();
  close_bulk(error);
}

void PeerService::tell(Message message) {
  if (!control_) return;
  if (auto* step = std::get_if<proto::StepReport>(&message); step != nullptr && step->updated && stage_)
    add_bytes_sent(*step);
  control_->send(message_frame(message));
}

// The machine knows for whom it waited, the links what they carried.
void PeerService::add_bytes_sent(proto::StepReport& step) const {
  std::vector<proto::LinkUse> links = stage_->links->take_use();
  for (proto::LinkUse& link : links)
    for (const proto::LinkUse& waited : step.links)
      if (waited.stage == link.stage) link.seconds_waiting = waited.seconds_waiting;
  step.links = std::move(links);
}

void PeerService::on_control_frame(const net::InFrame& frame) {
  Result<Message> message =
      fail(ErrorCode::InvalidArgument, "a frame of a kind that the broker does not send here");
  if (frame.kind == static_cast<uint8_t>(proto::FrameKind::Message))
    message = proto::decode(frame.payload.span());
  if (message) return carry_out(peer_->on_message(loop_.now(), *message));
  const Error error = message.error().within("the broker breaks the protocol");
  carry_out(peer_->on_lost(loop_.now(), error));
  drop_control(error);
}

// ---- connections from other peers
// --------------------------------------------------------------------------------

void PeerService::on_accepted(net::ConnectionPtr connection) {
  if (arrivals_.size() >= kArrivalsMax) return connection->close();
  const auto arrival = std::make_shared<Arrival>();
  arrival->connection = connection;
  arrival->since = loop_.now();
  arrivals_.push_back(arrival);
  const std::weak_ptr<Arrival> weak = arrival;
  arrival->on_frame = [this, weak](net::InFrame frame) {
    if (const auto here = weak.lock()) on_arrival_frame(here, std::move(frame));
  };
  arrival->on_closed = [this, weak](const Error&) {
    if (const auto here = weak.lock()) drop_arrival(here);
  };
  // Held by the connection: once a link takes it over, its functions change.
  connection->start({.on_frame =
                         [arrival](net::InFrame frame) {
                           const auto on_frame = arrival->on_frame;
                           on_frame(std::move(frame));
                         },
                     .on_closed =
                         [arrival](const Error& error) {
                           const auto on_closed = arrival->on_closed;
                           on_closed(error);
                         }});
}

void PeerService::on_arrival_frame(const std::shared_ptr<Arrival>& arrival, net::InFrame frame) {
  const auto message = frame.kind == static_cast<uint8_t>(proto::FrameKind::Message)
                           ? proto::decode(frame.payload.span())
                           : fail(ErrorCode::InvalidArgument, "not a message");
  const auto* hello = message ? std::get_if<proto::LinkHello>(&*message) : nullptr;
  if (hello == nullptr || arrival->hello) return drop_arrival(arrival);
  arrival->hello = *hello;
  match_arrivals();
}

// A neighbour may come before the broker's assignment does: it waits a while.
void PeerService::match_arrivals() {
  if (!stage_) return;
  for (const auto& arrival : std::vector(arrivals_)) {
    if (!arrival->hello) continue;
    auto taken = stage_->links->offer(arrival->connection, *arrival->hello);
    if (!taken) continue;
    arrival->on_frame = std::move(taken->on_frame);
    arrival->on_closed = std::move(taken->on_closed);
    arrival->connection.reset();  // the link holds it now
    std::erase(arrivals_, arrival);
  }
}

void PeerService::drop_arrival(const std::shared_ptr<Arrival>& arrival) {
  if (arrival->connection) arrival->connection->close();
  arrival->connection.reset();  // it holds the arrival in its handlers
  std::erase(arrivals_, arrival);
}

}  // namespace weft::peer
