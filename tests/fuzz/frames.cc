// A connection of net/, its transport in memory. Behind the handshake the other side writes the input, in
// records of the sizes that the input chooses: the pieces in which frames come.
#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "net/byte_queue.h"
#include "net/connection_core.h"
#include "net/context.h"
#include "proto/codec/codec.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/targets.h"

namespace weft::fuzz {
namespace {

using namespace net;

struct Pipe {
  ByteQueue bytes[2];
  bool is_gone[2] = {false, false};  // the end itself
};

class PipeEnd final : public Transport {
 public:
  PipeEnd(Pipe& pipe, size_t side) : pipe_(pipe), side_(side) {}
  ~PipeEnd() override { pipe_.is_gone[side_] = true; }
  // What a loop does for a socket. Whether there was something to tell.
  bool tell() {
    if (events_ == nullptr || !is_armed_ || pipe_.bytes[side_].empty()) return false;
    is_armed_ = false;
    events_->on_readable();
    return true;
  }
  void set_events(Events* events) override { events_ = events; }
  Io read(std::span<std::byte> into) override {
    ByteQueue& queue = pipe_.bytes[side_];
    if (queue.empty()) return Io::blocked();
    const auto front = queue.front();
    const size_t size = std::min(front.size(), into.size());
    std::memcpy(into.data(), front.data(), size);
    queue.consume(size);
    return Io::ready(size);
  }
  Io write(std::span<const std::byte> from) override {
    pipe_.bytes[1 - side_].append(from);
    return Io::ready(from.size());
  }
  void arm_read() override { is_armed_ = true; }
  void arm_write() override {}
  size_t unsent() override { return 0; }
  void set_unsent_max(size_t) override {}
  void shut_write() override {}
  void close() override {}
  const std::string& remote_address() const override { return address_; }

 private:
  Pipe& pipe_;
  size_t side_;
  Events* events_ = nullptr;
  bool is_armed_ = false;
  std::string address_ = "memory";
};

struct Sides {
  std::unique_ptr<security::Identity> identities[2] = {security::Identity::generate().value(),
                                                       security::Identity::generate().value()};
  std::shared_ptr<const TlsSettings> client = TlsSettings::make(*identities[0], TlsSide::Client).value();
  std::shared_ptr<const TlsSettings> server = TlsSettings::make(*identities[1], TlsSide::Server).value();
};

struct Receiver {
  ConnectionPtr connection;
  std::vector<std::byte> heard;  // frames as they were on the wire
  bool is_closed = false;

  void on_frame(const InFrame& frame) {
    const auto size = static_cast<uint32_t>(frame.size());
    for (int i = 0; i < 4; ++i) heard.push_back(static_cast<std::byte>(size >> (8 * i)));
    heard.push_back(static_cast<std::byte>(frame.kind));
    const auto payload = frame.payload.span();
    heard.insert(heard.end(), payload.begin(), payload.end());
    heard.insert(heard.end(), frame.body.get(), frame.body.get() + frame.body_size);
  }
  // As a link does with a piece of a tensor, and others where the kind is odd: it lies where it is to stay.
  static Result<PayloadPlace> place(uint8_t kind, size_t payload_size, std::span<const std::byte> head) {
    if (kind == static_cast<uint8_t>(proto::FrameKind::Piece)) {
      WEFT_TRY(const auto piece, proto::decode_piece_head(head, payload_size));
      if (piece.head.piece_size() == 0) return PayloadPlace{};
      return PayloadPlace{piece.head_size, std::make_shared<std::byte[]>(piece.head.piece_size())};
    }
    if (kind % 2 == 0 || head.empty()) return PayloadPlace{};
    const size_t head_size = std::min<size_t>(kind, head.size());
    return PayloadPlace{head_size, std::make_shared<std::byte[]>(payload_size - head_size)};
  }
};

}  // namespace

void frames(std::span<const std::byte> bytes) {
  static const Sides kSides;
  Input input(bytes);
  const auto choices = input.byte();
  Pipe pipe;
  Loop loop;
  auto server_end = std::make_unique<PipeEnd>(pipe, 1);
  PipeEnd* const arriving = server_end.get();
  auto client =
      Tls::make(*kSides.client, std::make_unique<PipeEnd>(pipe, 0), kSides.identities[1]->id()).value();
  const auto core = std::make_shared<ConnectionCore>(
      loop.impl().context, Tls::make(*kSides.server, std::move(server_end), {}).value(), nullptr);
  bool is_joined = false;
  core->handshake([&](Status status) { is_joined = status.has_value(); });
  Io io = Io::blocked();
  for (int turn = 0; turn < 8 && !is_joined; ++turn) {
    if (io.state == Io::State::Blocked) io = client->handshake();
    (void)client->flush();
    arriving->tell();
  }
  WEFT_CHECK_MSG(is_joined, "no handshake in memory");

  Receiver receiver;
  receiver.connection = core->make_connection();
  if (choices & 1) core->set_limits({.frame_size_max = 1 << 20});
  const bool pauses = choices & 4;
  Connection::Handlers handlers{.on_frame =
                                    [&](const InFrame& frame) {
                                      receiver.on_frame(frame);
                                      if (pauses) receiver.connection->pause_reading(true);
                                    },
                                .on_closed = [&](const Error&) { receiver.is_closed = true; }};
  if (choices & 2) handlers.on_head = &Receiver::place;
  receiver.connection->start(std::move(handlers));

  std::vector<std::byte> sent;
  const auto run = [&] {
    auto& ready = loop.impl().context->io;
    for (bool is_busy = true; is_busy;) {
      receiver.connection->pause_reading(false);
      is_busy = ready.poll() > 0;
      if (!pipe.is_gone[1]) is_busy |= arriving->tell();
    }
  };
  while (!input.empty() && !receiver.is_closed) {
    const auto record = input.take(choices & 8 ? size_t{1} + input.byte() : kTlsRecordSize);
    if (record.empty()) break;
    sent.insert(sent.end(), record.begin(), record.end());
    (void)client->write(record);
    (void)client->flush();
    run();
  }
  client->say_goodbye();
  (void)client->flush();
  run();
  WEFT_CHECK_MSG(receiver.is_closed, "a connection outlives its end");
  WEFT_CHECK(receiver.heard.size() <= sent.size());
  WEFT_CHECK_MSG(std::equal(receiver.heard.begin(), receiver.heard.end(), sent.begin()),
                 "other frames than were sent");
  receiver.connection->close();
}

}  // namespace weft::fuzz
