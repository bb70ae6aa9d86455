#include "peer/service/peer_service.h"

#include <algorithm>
#include <set>

#include "base/check.h"
#include "peer/service/peer_stage.h"

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
constexpr Duration kArrivalDeadline = std::chrono::seconds(30);
constexpr size_t kArrivalsMax = 256;
template <typename... F>
struct Overloaded : F... {
  using F::operator()...;
};
}  // namespace

PeerService::PeerService(net::Loop& loop, PeerServiceOptions options)
    : loop_(loop),
      options_(std::move(options)),
      session_({.hello = options_.hello,
                .seed = options_.identity->id().digest.bytes[0] +
                        256u * options_.identity->id().digest.bytes[1]}) {}

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
  session_ = Session(
      {.hello = options_.hello,
       .seed = options_.identity->id().digest.bytes[0] + 256u * options_.identity->id().digest.bytes[1]});
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
      carry_out(session_.start(loop_.now()));
      tick();
    });
  });
  loop_.run();
  timer_.reset();
  drop_stage("the peer leaves");
  if (control_) control_->close(std::chrono::seconds(1));
  close_bulk({ErrorCode::Cancelled, "the peer leaves"});
  return result_;
}

void PeerService::request_drain() {
  loop_.post([this] { carry_out(session_.request_drain(loop_.now())); });
}

void PeerService::stop() { loop_.stop(); }

void PeerService::tick() {
  carry_out(session_.on_tick(loop_.now(), options_.memory_free ? options_.memory_free() : Bytes{}));
  if (stage_ && stage_->links) stage_->links->on_tick();
  for (const auto& arrival : std::vector(arrivals_))
    if (loop_.now() - arrival->since > kArrivalDeadline) drop_arrival(arrival);
  timer_ = loop_.after(kTickInterval, [this] { tick(); });
}

void PeerService::carry_out(SessionEffects effects) {
  for (SessionEffect& effect : effects)
    std::visit(Overloaded{
                   [&](ConnectToBroker&) { connect_control(); },
                   [&](DropBroker&) {
                     if (control_) control_->close();
                     control_.reset();
                   },
                   [&](TellBroker& tell_it) { tell(tell_it.message); },
                   [&](LoadStage& load) { load_stage(std::move(load.assignment)); },
                   [&](DropStage& drop) { drop_stage(drop.reason); },
                   [&](Leave& leave) {
                     result_ = leave.why;
                     loop_.stop();
                   },
                   [&](Say& say) { log(say.line); },
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
    if (!result) return carry_out(session_.on_connect_failed(loop_.now(), result.error()));
    control_ = std::move(*result);
    net::ConnectionLimits limits;
    limits.frame_size_max = proto::kMessageSizeMax;
    control_->set_limits(limits);
    control_->start({.on_frame = [this](net::InFrame frame) { on_control_frame(frame); },
                     .on_closed =
                         [this](const Error& error) {
                           control_.reset();
                           close_bulk(error);
                           carry_out(session_.on_lost(loop_.now(), error));
                         }});
    carry_out(session_.on_connected(loop_.now()));
  });
}

void PeerService::tell(const Message& message) {
  if (control_) control_->send(message_frame(message));
}

void PeerService::on_control_frame(const net::InFrame& frame) {
  Result<Message> message =
      fail(ErrorCode::InvalidArgument, "a frame of a kind that the broker does not send here");
  if (frame.kind == static_cast<uint8_t>(proto::FrameKind::Message))
    message = proto::decode(frame.payload.span());
  if (!message) {
    if (control_) control_->close();
    control_.reset();
    return carry_out(session_.on_lost(loop_.now(), message.error().within("the broker breaks the protocol")));
  }
  on_control_message(*message);
}

void PeerService::on_control_message(const Message& message) {
  if (std::holds_alternative<proto::Command>(message) ||
      std::holds_alternative<proto::GradientNorm>(message) ||
      std::holds_alternative<proto::RelayInvitation>(message))
    return on_stage_message(message);
  carry_out(session_.on_message(loop_.now(), message));
}

// ---- the bulk connection
// -----------------------------------------------------------------------------------------

void PeerService::open_bulk() {
  if (transfers_) return;
  transfers_ = std::make_unique<BulkTransfers>([this](net::OutFrame frame) {
    if (bulk_ready_)
      bulk_->send(std::move(frame));
    else
      bulk_waiting_.push_back(std::move(frame));
  });
  net::ConnectOptions options;
  options.identity = options_.identity;
  options.expected = options_.broker_key;
  if (options_.shape) options.shape = options_.shape("");
  bulk_attempt_ = net::connect(loop_, options_.broker, options, [this](Result<net::ConnectionPtr> result) {
    if (!result) return close_bulk(result.error());
    bulk_ = std::move(*result);
    net::ConnectionLimits limits;
    limits.frame_size_max = proto::kTensorSizeMax + proto::kTensorHeaderSizeMax;
    limits.send_queue_max = size_t{16} << 30;
    bulk_->set_limits(limits);
    bulk_->start({.on_frame = [this](net::InFrame frame) { on_bulk_frame(frame); },
                  .on_closed = [this](const Error& error) { close_bulk(error); }});
    proto::Hello hello = options_.hello;
    hello.role = proto::Role::PeerBulk;
    hello.device.reset();
    hello.token.reset();
    bulk_->send(message_frame(hello));
  });
}

void PeerService::close_bulk(const Error& error) {
  bulk_ready_ = false;
  bulk_waiting_.clear();
  if (bulk_) bulk_->close();
  bulk_.reset();
  if (!transfers_) return;
  // What was under way is told, and may want to begin anew: on a new connection.
  const std::unique_ptr<BulkTransfers> old = std::move(transfers_);
  old->fail_all(error);
}

void PeerService::on_bulk_frame(const net::InFrame& frame) {
  Status status;
  if (frame.kind == static_cast<uint8_t>(proto::FrameKind::Message)) {
    const auto message = proto::decode(frame.payload.span());
    if (!message) return close_bulk(message.error());
    if (std::holds_alternative<proto::HelloAck>(*message) && !bulk_ready_) {
      bulk_ready_ = true;
      for (net::OutFrame& waiting : std::exchange(bulk_waiting_, {})) bulk_->send(std::move(waiting));
    } else if (const auto* refusal = std::get_if<proto::Refusal>(&*message)) {
      close_bulk({refusal->code, refusal->message});
    } else {
      const auto taken = transfers_->on_message(*message);
      if (!taken) status = fail(taken.error());
    }
  } else if (frame.kind == static_cast<uint8_t>(proto::FrameKind::Chunk)) {
    const auto chunk = proto::decode_chunk(frame.payload.span());
    status = chunk ? transfers_->on_chunk(*chunk) : fail(chunk.error());
  } else {
    const auto tensor = proto::decode_tensor(frame.payload.span());
    status = tensor ? transfers_->on_tensor(*tensor) : fail(tensor.error());
  }
  if (!status) close_bulk(status.error());
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
  if (!stage_ || !stage_->links) return;
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
