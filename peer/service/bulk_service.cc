#include "peer/service/bulk_service.h"

#include <algorithm>

namespace weft::peer {

namespace {
constexpr Duration kTickInterval = std::chrono::milliseconds(250);
constexpr Duration kTellInterval = std::chrono::seconds(1);
}  // namespace

BulkService::BulkService(net::Loop& owner, Options options)
    : owner_(owner),
      options_(std::move(options)),
      sources_({.loop = &loop_,
                .identity = options_.identity,
                .shape = options_.shape,
                .may_dial = options_.may_dial}),
      thread_([this] {
        loop_.run();
        abandon({ErrorCode::Cancelled, "the peer leaves"});
      }) {}

BulkService::~BulkService() {
  epoch_.reset();
  loop_.stop();
  thread_.join();
}

// ---- for the owner

template <typename T>
BulkService::Done<T> BulkService::on_owner(Done<T> done) const {
  return [&owner = owner_, now = std::weak_ptr(epoch_), epoch = *epoch_,
          done = std::move(done)](Result<T> came) {
    owner.post([now, epoch, done, came = std::make_shared<Result<T>>(std::move(came))] {
      if (const auto current = now.lock(); current && *current == epoch) done(std::move(*came));
    });
  };
}

void BulkService::get(Wanted wanted, Done<net::SharedBytes> done) {
  loop_.post([this, wanted = std::move(wanted), done = on_owner(std::move(done))] {
    if (wanted.rate != 0 && !wanted.source) {  // a peer keeps to its rate itself, each of several
      paced_.push_back({wanted, done});
      return get_paced();
    }
    std::erase_if(paced_, [&](const Paced& paced) { return paced.wanted.sha256 == wanted.sha256; });
    get_now(wanted, done);
  });
}

void BulkService::missing(std::vector<Digest> blobs, bool durable, Done<std::vector<Digest>> done) {
  loop_.post([this, blobs = std::move(blobs), durable, done = on_owner(std::move(done))] {
    transfers().missing({.blobs = blobs, .durable = durable}, done);
  });
}

void BulkService::put(const Digest& sha256, net::SharedBytes bytes, BulkTransfers::PutOptions options,
                      std::function<void(Status)> done) {
  if (options.on_sent)
    options.on_sent = on_owner<uint64_t>(
        [on_sent = std::move(options.on_sent)](const Result<uint64_t>& sent) { on_sent(*sent); });
  loop_.post([this, sha256, bytes = std::move(bytes), options = std::move(options),
              done = on_owner<void>(std::move(done))] {
    transfers().put(sha256, bytes, options, done);
    if (!sent_timer_) tell_sent();
  });
}

void BulkService::cancel_puts(uint64_t owner) {
  loop_.post([this, owner] {
    if (transfers_) transfers_->cancel_puts(owner);
  });
}

void BulkService::get_microbatch(proto::GetMicrobatch request, std::vector<dag::TensorSpec> specs,
                                 Done<BulkTransfers::MicrobatchData> done) {
  loop_.post([this, request = std::move(request), specs = std::move(specs),
              done = on_owner(std::move(done))] { transfers().get_microbatch(request, specs, done); });
}

void BulkService::reset() {
  ++*epoch_;
  loop_.post([this] { abandon({ErrorCode::Cancelled, "the broker was lost"}); });
}

// ---- the connection

BulkTransfers& BulkService::transfers() {
  if (transfers_) return *transfers_;
  transfers_ = std::make_shared<BulkTransfers>(
      [this](net::OutFrame frame) {
        if (is_ready_)
          connection_->send(std::move(frame));
        else
          waiting_.push_back(std::move(frame));
      },
      BulkTransfers::Pacing{.loop = &loop_,
                            .unsent = [this] { return connection_ ? connection_->unsent() : 0; },
                            .yields = [urgent = options_.urgent] { return urgent && urgent->waiting(); }});
  net::ConnectOptions options;
  options.identity = options_.identity;
  options.expected = options_.broker_key;
  if (options_.shape) options.shape = options_.shape("");
  const uint64_t number = ++number_;
  attempt_ = net::connect(loop_, options_.broker, options, [this, number](Result<net::ConnectionPtr> result) {
    if (number != number_) return;
    if (!result) return close(result.error());
    connection_ = std::move(*result);
    net::ConnectionLimits limits;
    limits.frame_size_max = proto::kTensorSizeMax + proto::kTensorHeaderSizeMax;
    limits.send_queue_max = size_t{16} << 30;
    connection_->set_limits(limits);
    connection_->start({.on_frame = [this](net::InFrame frame) { on_frame(frame); },
                        .on_closed = [this](const Error& error) { close(error); },
                        .on_head = [this](uint8_t kind, size_t size,
                                          std::span<const std::byte> head) -> Result<net::PayloadPlace> {
                          return transfers_ ? transfers_->place(kind, size, head) : net::PayloadPlace{};
                        }});
    proto::Hello hello = options_.hello;
    hello.role = proto::Role::PeerBulk;
    hello.device.reset();
    hello.token.reset();
    connection_->send(message_frame(hello));
  });
  return *transfers_;
}

// What was under way is told, and may want to begin anew: on a new connection.
void BulkService::close(const Error& error) {
  ++number_;
  is_ready_ = false;
  waiting_.clear();
  if (connection_) connection_->close();
  connection_.reset();
  // This may be its callback.
  if (attempt_) loop_.post([attempt = std::shared_ptr<net::Attempt>(std::move(attempt_))] {});
  const std::shared_ptr<BulkTransfers> old = std::move(transfers_);
  if (old) old->fail_all(error);
  timer_.reset();
  for (const Paced& paced : std::exchange(paced_, {})) paced.done(weft::fail(error));
}

void BulkService::abandon(const Error& error) {
  close(error);
  sources_.abandon(error);
  tick_timer_.reset();
  sent_timer_.reset();
}

void BulkService::on_frame(const net::InFrame& frame) {
  const std::shared_ptr<BulkTransfers> transfers = transfers_;  // what comes may end it
  Status status;
  if (frame.kind == static_cast<uint8_t>(proto::FrameKind::Message)) {
    const auto message = proto::decode(frame.payload.span());
    if (!message) return close(message.error());
    if (std::holds_alternative<proto::HelloAck>(*message) && !is_ready_) {
      is_ready_ = true;
      for (net::OutFrame& waiting : std::exchange(waiting_, {})) connection_->send(std::move(waiting));
    } else if (const auto* refusal = std::get_if<proto::Refusal>(&*message)) {
      close({refusal->code, refusal->message});
    } else {
      const auto taken = transfers->on_message(*message);
      if (!taken) status = fail(taken.error());
    }
  } else if (frame.kind == static_cast<uint8_t>(proto::FrameKind::Chunk)) {
    const auto chunk = proto::decode_chunk(frame.payload.span());
    status = chunk ? transfers->on_chunk(*chunk, frame.body_size) : fail(chunk.error());
  } else {
    auto tensor = tensor_of(frame);
    status = tensor ? transfers->on_tensor(std::move(*tensor)) : fail(tensor.error());
  }
  if (!status && transfers == transfers_) close(status.error());
}

// ---- blobs

// Each request waits until the rate has carried the one before.
void BulkService::get_paced() {
  const Instant now = loop_.now();
  while (!paced_.empty()) {
    if (const Duration wait = pacer_.wait(now, paced_.front().wanted.rate); wait > Duration{}) {
      timer_ = loop_.after(wait, [this] { get_paced(); });
      return;
    }
    const Paced next = std::move(paced_.front());
    paced_.pop_front();
    pacer_.take(now, next.wanted.size, next.wanted.rate);
    get_now(next.wanted, next.done);
  }
}

void BulkService::get_now(const Wanted& wanted, Done<net::SharedBytes> done) {
  auto share = [done = std::move(done)](Result<std::vector<std::byte>> bytes) {
    if (!bytes) return done(weft::fail(bytes.error()));
    const auto kept = std::make_shared<const std::vector<std::byte>>(std::move(*bytes));
    done(net::SharedBytes{kept, *kept});
  };
  if (!wanted.source)
    return transfers().get(wanted.sha256, wanted.size, {.rate = wanted.rate}, std::move(share));
  sources_.get(*wanted.source, {wanted.sha256, wanted.size, wanted.rate, wanted.base}, std::move(share));
  if (!tick_timer_) tick();
}

// While there are sources.
void BulkService::tick() {
  tick_timer_.reset();
  sources_.on_tick();
  if (sources_.sources() > 0) tick_timer_ = loop_.after(kTickInterval, [this] { tick(); });
}

// While there are puts.
void BulkService::tell_sent() {
  sent_timer_.reset();
  if (transfers_ && transfers_->tell_sent())
    sent_timer_ = loop_.after(kTellInterval, [this] { tell_sent(); });
}

}  // namespace weft::peer
