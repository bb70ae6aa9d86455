#include "cli/client.h"

#include <algorithm>

#include "proto/codec/codec.h"
#include "storage/files.h"

namespace weft::cli {

using proto::Message;

namespace {

constexpr Duration kStallDeadline = std::chrono::seconds(60);  // of a transfer on which nothing moves
constexpr Duration kRetryFirst = std::chrono::milliseconds(500);
constexpr Duration kRetryMax = std::chrono::seconds(8);
constexpr size_t kSendAhead = 4 << 20;      // bytes queued at most while a file is sent
constexpr size_t kGetsAtOnce = 16;          // blobs asked for before the first has come
constexpr size_t kPutsAtOnce = 64;          // blobs sent whose answer has not come
constexpr uint64_t kFirstPut = 1ull << 62;  // numbers of puts, away from those of BulkTransfers

proto::Role role_of(security::Role role) {
  if (role == security::Role::Admin) return proto::Role::Admin;
  return role == security::Role::Peer ? proto::Role::PeerBulk : proto::Role::Submitter;
}

std::string seconds_text(Duration duration) {
  return std::to_string(static_cast<int64_t>(seconds(duration))) + " s";
}

}  // namespace

Result<std::unique_ptr<Client>> Client::connect(net::Loop& loop, Options options) {
  std::unique_ptr<Client> client(new Client(loop, std::move(options)));
  WEFT_TRY_STATUS(client->open());
  WEFT_TRY_STATUS(client->greet());
  return client;
}

Client::~Client() {
  transfers_.reset();
  if (connection_) connection_->close();
}

Status Client::open() {
  std::optional<Result<net::ConnectionPtr>> result;
  const auto attempt =
      net::connect(loop_, options_.address.endpoint,
                   {.identity = options_.identity,
                    .expected = options_.address.token.broker,
                    .deadline = options_.deadline,
                    .shape = {}},
                   [&](Result<net::ConnectionPtr> connected) { result = std::move(connected); });
  // The attempt has a deadline of its own; this one is only a net beneath it.
  loop_.run_until(options_.deadline + std::chrono::seconds(5),
                  [&] { return result.has_value() || interrupted(); });
  if (interrupted()) return fail(ErrorCode::Cancelled, "interrupted");
  const std::string broker = "the broker " + net::to_string(options_.address.endpoint);
  if (!result) return fail(ErrorCode::Timeout, broker + " does not answer");
  if (!*result) {
    const Error& error = result->error();
    if (error.code == ErrorCode::PermissionDenied)
      return fail(ErrorCode::PermissionDenied, broker + " is not the one that the token is for (" +
                                                   error.message +
                                                   "): check the address, or ask its owner for a new token");
    if (error.code == ErrorCode::Unavailable || error.code == ErrorCode::Timeout)
      return fail(error.code, "cannot reach the broker " + error.message + "; is it running (weft broker)?");
    return fail(error.within("cannot reach the broker"));
  }
  connection_ = std::move(**result);
  transfers_ = std::make_unique<peer::BulkTransfers>(
      [this](net::OutFrame frame) { connection_->send(std::move(frame)); });
  connection_->set_limits({.frame_size_max = proto::kMessageSizeMax, .send_queue_max = size_t{1} << 30});
  connection_->start({.on_frame = [this](net::InFrame frame) { on_frame(frame); },
                      .on_closed = [this](const Error& error) { on_lost(error); }});
  return {};
}

Status Client::greet() {
  const security::Token& token = options_.address.token;
  proto::Hello hello;
  hello.software = WEFT_VERSION;
  hello.role = role_of(token.role);
  hello.token = proto::TokenProof{token.id, token.secret.bytes};
  WEFT_TRY(broker_, ask<proto::HelloAck>(hello, options_.deadline));
  if (broker_.major != proto::kProtocolMajor)
    return fail(ErrorCode::VersionMismatch, "the broker speaks protocol " + std::to_string(broker_.major) +
                                                ", this program " + std::to_string(proto::kProtocolMajor) +
                                                ": install weft " + broker_.software);
  return {};
}

void Client::on_lost(const Error& error) {
  if (lost_) return;
  lost_ = Error{ErrorCode::Unavailable, "the connection to the broker ended: " + error.message};
  transfers_->fail_all(*lost_);
}

void Client::on_frame(const net::InFrame& frame) {
  Status status;
  if (frame.kind == static_cast<uint8_t>(proto::FrameKind::Chunk)) {
    const auto chunk = proto::decode_chunk(frame.payload.span());
    status = chunk ? transfers_->on_chunk(*chunk) : fail(chunk.error());
  } else if (frame.kind == static_cast<uint8_t>(proto::FrameKind::Message)) {
    auto message = proto::decode(frame.payload.span());
    if (!message) {
      status = fail(message.error());
    } else if (const auto* answer = std::get_if<proto::BlobAnswer>(&*message);
               answer != nullptr && puts_.contains(answer->request)) {
      if (!answer->message.empty() && !put_error_)
        put_error_ = Error{answer->code,
                           "the broker did not take " + puts_.at(answer->request) + ": " + answer->message};
      puts_.erase(answer->request);
    } else if (auto taken = transfers_->on_message(*message); !taken) {
      status = fail(taken.error());
    } else if (!*taken) {
      inbox_.push_back(std::move(*message));
    }
  } else {
    status = fail(ErrorCode::Corrupted, "a frame of a kind that brokers do not send to users");
  }
  if (status) return;
  on_lost(status.error());
  connection_->close();
}

Status Client::run_until(Duration deadline, const std::function<bool()>& done, const std::string& what) {
  loop_.run_until(deadline, [&] { return done() || lost_.has_value() || interrupted(); });
  if (interrupted()) return fail(ErrorCode::Cancelled, "interrupted");
  if (done()) return {};
  if (lost_) return fail(*lost_);
  return fail(ErrorCode::Timeout,
              "the broker did not answer within " + seconds_text(deadline) + " (" + what + ")");
}

Status Client::run_while_moving(const std::function<bool()>& done, const std::string& what) {
  for (uint64_t moved = ~uint64_t{0};;) {
    const net::ConnectionStats stats = connection_->stats();
    if (const uint64_t now = stats.bytes_sent + stats.bytes_received; now != moved)
      moved = now;
    else
      return fail(ErrorCode::Timeout,
                  "nothing has moved for " + seconds_text(kStallDeadline) + " (" + what + ")");
    Status status = run_until(kStallDeadline, done, what);
    if (status || status.error().code != ErrorCode::Timeout) return status;
  }
}

void Client::send(const Message& message) { connection_->send(peer::message_frame(message)); }

Result<bool> Client::wait(Duration deadline) {
  if (!inbox_.empty()) return true;
  const Status status = run_until(
      deadline, [&] { return !inbox_.empty(); }, "");
  if (!status && status.error().code != ErrorCode::Timeout) return fail(status.error());
  return !inbox_.empty();
}

std::optional<Message> Client::take() {
  if (inbox_.empty()) return std::nullopt;
  Message message = std::move(inbox_.front());
  inbox_.pop_front();
  return message;
}

Result<Message> Client::ask_for(const Message& request, Duration deadline, const IsAnswer& is_answer) {
  return ask_for(proto::share(proto::encode(request)), name_of(request), deadline, is_answer);
}

Result<Message> Client::ask_for(const proto::EncodedBytes& request, std::string_view what, Duration deadline,
                                const IsAnswer& is_answer) {
  const Instant end = loop_.now() + deadline;
  for (Duration backoff = kRetryFirst;; backoff = std::min(2 * backoff, kRetryMax)) {
    connection_->send({.kind = static_cast<uint8_t>(proto::FrameKind::Message),
                       .head = {},
                       .body = {request.owner, request.bytes}});
    auto found = inbox_.end();
    const auto look = [&] {
      found = std::find_if(inbox_.begin(), inbox_.end(), [&](const Message& message) {
        return is_answer(message) || std::holds_alternative<proto::Refusal>(message);
      });
      return found != inbox_.end();
    };
    WEFT_TRY_STATUS(run_until(std::max(end - loop_.now(), Duration::zero()), look, std::string(what)));
    Message answer = std::move(*found);
    inbox_.erase(found);
    const auto* refusal = std::get_if<proto::Refusal>(&answer);
    if (refusal == nullptr) return answer;
    if (!refusal->retry || lost_ || loop_.now() + backoff >= end)
      return fail(refusal->code, refusal->message);
    loop_.run_until(backoff, [&] { return lost_.has_value() || interrupted(); });
  }
}

Status Client::lend(const Digest& sha256, std::span<const std::byte> bytes, Duration deadline) {
  // Its own copy: a transfer that is given up may still send it.
  const auto held = std::make_shared<std::vector<std::byte>>(bytes.begin(), bytes.end());
  const auto answer = std::make_shared<std::optional<Status>>();
  transfers_->put(sha256, {held, *held}, {.durable = false},
                  [answer](Status status) { *answer = std::move(status); });
  WEFT_TRY_STATUS(run_until(
      deadline, [&] { return answer->has_value(); }, "sending bytes"));
  return **answer;
}

Status Client::get_back(const Digest& sha256, uint64_t size, size_t times, Duration deadline) {
  struct Answers {
    size_t count = 0;
    Status status;
  };
  const auto answers = std::make_shared<Answers>();
  for (size_t i = 0; i < times; ++i)
    transfers_->get(sha256, size, [answers](Result<std::vector<std::byte>> bytes) {
      ++answers->count;
      if (!bytes && answers->status) answers->status = fail(bytes.error());
    });
  WEFT_TRY_STATUS(run_until(
      deadline, [&] { return answers->count == times; }, "fetching bytes"));
  return answers->status;
}

Result<std::vector<Digest>> Client::missing(std::vector<Digest> blobs,
                                            std::vector<proto::BlobRecipe> recipes) {
  std::optional<Result<std::vector<Digest>>> result;
  transfers_->missing({.blobs = std::move(blobs), .recipes = std::move(recipes)},
                      [&](Result<std::vector<Digest>> answer) { result = std::move(answer); });
  const Status status =
      run_while_moving([&] { return result.has_value(); }, "asking which tensors are there");
  if (!result) transfers_->fail_all({ErrorCode::Cancelled, "given up"});  // the callback refers to this frame
  if (!status) return fail(status.error());
  return std::move(*result);
}

Status Client::put(const Digest& sha256, const storage::BlobSource& source,
                   const std::function<void(uint64_t)>& progress) {
  const uint64_t request = kFirstPut + ++put_count_;
  const std::string what = "sending " + source.file.string();
  WEFT_TRY_STATUS(run_while_moving([&] { return put_error_ || puts_.size() < kPutsAtOnce; }, what));
  if (put_error_) return fail(*put_error_);
  puts_[request] = source.file.string();
  send(proto::PutBlob{request, sha256, source.range.size});
  Status status = storage::read_source(source, [&](std::span<const std::byte> bytes) -> Status {
    const auto piece = std::make_shared<std::vector<std::byte>>(bytes.begin(), bytes.end());
    connection_->send({.kind = static_cast<uint8_t>(proto::FrameKind::Chunk),
                       .head = proto::encode_chunk_head(request),
                       .body = {piece, *piece}});
    WEFT_TRY_STATUS(
        run_while_moving([&] { return put_error_ || connection_->stats().bytes_queued < kSendAhead; }, what));
    if (put_error_) return fail(*put_error_);
    progress(piece->size());
    return {};
  });
  if (!status && !lost_) {  // in the middle of a blob there is no way on
    connection_->close();
    on_lost(status.error());
  }
  return status;
}

Status Client::finish_puts() {
  WEFT_TRY_STATUS(run_while_moving([&] { return put_error_ || puts_.empty(); },
                                   "waiting until the broker has kept it all"));
  if (put_error_) return fail(*put_error_);
  return {};
}

Status Client::get(std::span<const Digest> blobs, std::span<const uint64_t> sizes,
                   const std::function<Status(size_t, std::vector<std::byte>)>& done) {
  const auto hold = [](size_t) -> Result<Sink> { return Sink{}; };
  return get_all(blobs, sizes, hold, [&](size_t index, std::vector<std::byte> bytes) -> Status {
    if (bytes.size() == sizes[index]) return done(index, std::move(bytes));
    return fail(ErrorCode::Corrupted, "blob " + to_hex(blobs[index]) + " has another size than was said");
  });
}

Status Client::get_into(storage::BlobStore& store, std::span<const Digest> blobs,
                        std::span<const uint64_t> sizes, const std::function<void(uint64_t)>& progress) {
  using Writer = storage::BlobStore::Writer;
  std::map<size_t, std::shared_ptr<Writer>> writers;  // of those under way
  const auto write = [&](size_t index) -> Result<Sink> {
    WEFT_TRY(std::shared_ptr<Writer> writer,
             store.begin(blobs[index], sizes[index], storage::Durability::Transient));
    writers[index] = writer;
    return Sink([writer, &progress](std::span<const std::byte> bytes) {
      if (progress) progress(bytes.size());
      return writer->write(bytes);
    });
  };
  return get_all(blobs, sizes, write, [&](size_t index, const std::vector<std::byte>&) -> Status {
    const auto writer = std::move(writers.at(index));
    writers.erase(index);
    return writer->finish();
  });
}

Status Client::get_all(std::span<const Digest> blobs, std::span<const uint64_t> sizes,
                       const std::function<Result<Sink>(size_t)>& sink_of,
                       const std::function<Status(size_t, std::vector<std::byte>)>& done) {
  Status status;
  size_t asked = 0, come = 0;
  const auto ask_more = [&] {
    for (; status && asked < blobs.size() && asked < come + kGetsAtOnce; ++asked) {
      auto sink = sink_of(asked);
      if (!sink) {
        status = fail(sink.error());
        return;
      }
      peer::BulkTransfers::GetOptions options;
      options.sink = std::move(*sink);
      transfers_->get(blobs[asked], sizes[asked], options,
                      [&, index = asked](Result<std::vector<std::byte>> bytes) {
                        ++come;
                        if (!status) return;
                        status = bytes ? done(index, std::move(*bytes)) : fail(bytes.error());
                      });
    }
  };
  for (size_t seen = 0; status && come < blobs.size(); seen = come) {
    ask_more();
    if (!status) break;
    const Status waited =
        run_while_moving([&] { return come > seen || !status; }, "fetching what was computed");
    if (status) status = waited;
  }
  if (!status) transfers_->fail_all({ErrorCode::Cancelled, "given up"});  // callbacks refer to this frame
  return status;
}

Result<std::unique_ptr<BrokerAccess>> BrokerAccess::open(const BrokerOptions& options) {
  WEFT_TRY(BrokerAddress address, find_broker(options));
  return open(std::move(address));
}

Result<std::unique_ptr<BrokerAccess>> BrokerAccess::open(BrokerAddress address, net::Loop* loop,
                                                         std::unique_ptr<security::Identity> identity) {
  std::unique_ptr<BrokerAccess> access(new BrokerAccess());
  if (loop == nullptr) access->own_loop_ = std::make_unique<net::Loop>();
  access->loop_ = loop != nullptr ? loop : access->own_loop_.get();
  access->address_ = std::move(address);
  if (identity != nullptr) {
    access->identity_ = std::move(identity);
  } else if (const auto folder = config_folder()) {
    storage::Files files;
    WEFT_TRY_STATUS(files.make_directories(*folder));
    WEFT_TRY(access->identity_, security::Identity::load_or_create(*folder));
  } else {
    WEFT_TRY(access->identity_, security::Identity::generate());
  }
  return access;
}

Result<std::unique_ptr<Client>> BrokerAccess::connect() {
  return Client::connect(*loop_, {.address = address_, .identity = identity_.get(), .interrupted = [this] {
                                    return interrupted_;
                                  }});
}

void BrokerAccess::pause(Duration duration) {
  loop_->run_until(duration, [this] { return interrupted_; });
}

}  // namespace weft::cli
