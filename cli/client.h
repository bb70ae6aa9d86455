// A user's connection to a broker, for programs that ask and wait. Everything happens on the caller's thread,
// within the calls; every wait has a deadline and ends early when the user interrupts.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "cli/broker_address.h"
#include "net/connection.h"
#include "net/loop.h"
#include "peer/service/bulk.h"
#include "proto/encoded.h"
#include "proto/messages.h"
#include "security/identity.h"
#include "storage/blob_store.h"
#include "storage/package.h"

namespace weft::cli {

inline constexpr Duration kAnswerDeadline = std::chrono::seconds(30);

// One admitted connection. Errors of its calls: Unavailable when it was lost (lost() is true then), Timeout,
// Cancelled when the user interrupted, and what the broker refused with.
class Client {
 public:
  struct Options {
    BrokerAddress address;
    const security::Identity* identity = nullptr;  // must outlive the client
    std::function<bool()> interrupted{};
    Duration deadline = std::chrono::seconds(10);  // of connecting, and of the broker's greeting
  };
  // Connects to the key that the token names, shows the token, and is admitted: as whom the token is for, or
  // with a peer's for blobs alone. `loop` must outlive the client.
  static Result<std::unique_ptr<Client>> connect(net::Loop& loop, Options options);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  const proto::HelloAck& broker() const { return broker_; }
  const net::Connection& connection() const { return *connection_; }
  bool lost() const { return lost_.has_value(); }

  // Sends a request and waits for its answer, a T. One request at a time. A refusal that says so is tried
  // again until the deadline, with back-off; any other is the error.
  template <typename T>
  Result<T> ask(const proto::Message& request, Duration deadline = kAnswerDeadline) {
    WEFT_TRY(proto::Message answer, ask_for(request, deadline, is_a<T>));
    return std::get<T>(std::move(answer));
  }
  // The same of a request that is encoded already; `what` names it in errors.
  template <typename T>
  Result<T> ask(const proto::EncodedBytes& request, std::string_view what, Duration deadline) {
    WEFT_TRY(proto::Message answer, ask_for(request, what, deadline, is_a<T>));
    return std::get<T>(std::move(answer));
  }

  // Messages that come unasked: events.
  void send(const proto::Message& message);
  // Whether a message is there, at the latest when the deadline has passed.
  Result<bool> wait(Duration deadline);
  std::optional<proto::Message> take();

  // Has the broker hold bytes for a while, and gives them back, both to see how fast they go. After an error
  // the connection is good for nothing more. Errors: Timeout beside the usual ones.
  Status lend(const Digest& sha256, std::span<const std::byte> bytes, Duration deadline);
  Status get_back(const Digest& sha256, uint64_t size, size_t times, Duration deadline);

  // Which of the blobs the broker lacks, and cannot make by the recipes for some of them.
  Result<std::vector<Digest>> missing(std::vector<Digest> blobs, std::vector<proto::BlobRecipe> recipes = {});
  // Sends a blob in pieces, as fast as they go out; `progress` is told of bytes. Whether the broker has it,
  // finish_puts() or a later put() tells.
  Status put(const Digest& sha256, const storage::BlobSource& source,
             const std::function<void(uint64_t)>& progress);
  Status finish_puts();
  // Fetches blobs, several at once; `done` gets each, in any order. `sizes[i]` is how many bytes blob i must
  // have.
  Status get(std::span<const Digest> blobs, std::span<const uint64_t> sizes,
             const std::function<Status(size_t index, std::vector<std::byte> bytes)>& done);
  // The same into a store, where they are as long as the store is: no more than pieces of them are held.
  // `progress` is told of bytes as they come.
  Status get_into(storage::BlobStore& store, std::span<const Digest> blobs, std::span<const uint64_t> sizes,
                  const std::function<void(uint64_t)>& progress = {});

 private:
  // `sink_of`: where the bytes of a blob go as they come; nothing: they are held, and given to `done`.
  using Sink = std::function<Status(std::span<const std::byte>)>;
  Status get_all(std::span<const Digest> blobs, std::span<const uint64_t> sizes,
                 const std::function<Result<Sink>(size_t index)>& sink_of,
                 const std::function<Status(size_t index, std::vector<std::byte> bytes)>& done);
  explicit Client(net::Loop& loop, Options options) : loop_(loop), options_(std::move(options)) {}
  Status open();
  Status greet();
  void on_frame(const net::InFrame& frame);
  void on_lost(const Error& error);
  template <typename T>
  static bool is_a(const proto::Message& message) {
    return std::holds_alternative<T>(message);
  }
  using IsAnswer = std::function<bool(const proto::Message&)>;
  Result<proto::Message> ask_for(const proto::Message& request, Duration deadline, const IsAnswer& is_answer);
  Result<proto::Message> ask_for(const proto::EncodedBytes& request, std::string_view what, Duration deadline,
                                 const IsAnswer& is_answer);
  // Runs the loop until `done`; Timeout with `what` in it. Losing the connection and interruption are errors
  // first.
  Status run_until(Duration deadline, const std::function<bool()>& done, const std::string& what);
  // The same as long as bytes go either way.
  Status run_while_moving(const std::function<bool()>& done, const std::string& what);
  bool interrupted() const { return options_.interrupted && options_.interrupted(); }

  net::Loop& loop_;
  Options options_;
  net::ConnectionPtr connection_;
  std::optional<Error> lost_;
  proto::HelloAck broker_;
  std::deque<proto::Message> inbox_;
  std::unique_ptr<peer::BulkTransfers> transfers_;
  // Blobs that were sent, by request, and not yet answered for.
  std::map<uint64_t, std::string> puts_;
  uint64_t put_count_ = 0;
  std::optional<Error> put_error_;
};

// A loop, an identity and an address: what makes clients, again and again when need be.
class BrokerAccess {
 public:
  // The identity is kept beside the login; where there is no such place it is made for this once.
  static Result<std::unique_ptr<BrokerAccess>> open(const BrokerOptions& options);
  // `loop`, when given, must outlive this. `identity`, when given, is used in place of the one that is kept.
  static Result<std::unique_ptr<BrokerAccess>> open(BrokerAddress address, net::Loop* loop = nullptr,
                                                    std::unique_ptr<security::Identity> identity = nullptr);

  net::Loop& loop() { return *loop_; }
  Result<std::unique_ptr<Client>> connect();
  // Lets the loop run for so long, or until the user interrupts.
  void pause(Duration duration);

  // From here on Ctrl-C ends every wait. REQUIRES: the signals are blocked (cli/signals.h).
  void set_interrupted() { interrupted_ = true; }
  bool interrupted() const { return interrupted_; }

 private:
  BrokerAccess() = default;
  std::unique_ptr<net::Loop> own_loop_;
  net::Loop* loop_ = nullptr;
  BrokerAddress address_;
  std::unique_ptr<security::Identity> identity_;
  bool interrupted_ = false;
};

}  // namespace weft::cli
