// TLS 1.3 over a Transport, without waiting. Both sides show a certificate whose only use is to carry an
// Ed25519 key; what is compared is the hash of that key. Nothing is resumed: a resumed session would skip the
// comparison. Internal.
#pragma once

#include <openssl/ssl.h>

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "net/transport.h"
#include "security/identity.h"

namespace weft::net {

struct TlsRelease {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  void operator()(SSL* ssl) const { SSL_free(ssl); }
};

enum class TlsSide : uint8_t { Client, Server };

// The settings of one side, shared by its connections.
class TlsSettings {
 public:
  static Result<std::shared_ptr<const TlsSettings>> make(const security::Identity& identity, TlsSide side);
  SSL_CTX* get() const { return context_.get(); }
  TlsSide side() const { return side_; }

 private:
  std::unique_ptr<SSL_CTX, TlsRelease> context_;
  TlsSide side_ = TlsSide::Client;
};

inline constexpr size_t kTlsRecordSize = 16 << 10;

class Tls {
 public:
  // `first` are bytes that were read from the transport already.
  static Result<std::unique_ptr<Tls>> make(const TlsSettings& settings, TransportPtr transport,
                                           std::optional<PeerId> expected,
                                           std::span<const std::byte> first = {});
  ~Tls();
  Tls(const Tls&) = delete;
  Tls& operator=(const Tls&) = delete;

  Transport& transport() { return *transport_; }
  const PeerId& remote() const { return remote_; }  // after the handshake

  // Ready when it is complete; what is to be sent for it lies in the output, so flush() after each call.
  Io handshake();
  // At most one record, so that the caller may let others have their turn. Ready with a size of 0: one
  // without data (a new key). More of those than a long stream needs, or one before any data, is Failed.
  Io read(std::span<std::byte> into);
  // The other side is known: input is read in larger pieces.
  void expect_much() { input_max_ = kInputSize; }
  // The whole of `from`, at most a record: into the output. REQUIRES: has_room().
  Io write(std::span<const std::byte> from);
  bool has_room() const { return output_end_ - output_begin_ < kOutputFull; }
  void say_goodbye();  // close_notify into the output

  // Gives the output to the transport. Ready when all is gone.
  Io flush();
  size_t output_size() const { return output_end_ - output_begin_; }

  // Why the last call Failed: Corrupted, PermissionDenied, Unavailable.
  const Error& error() const { return error_; }

  // The sender's key is renewed after so many bytes, well below what AES-GCM can bear.
  uint64_t key_update_bytes = uint64_t{1} << 36;
  // For each so many bytes the other side may renew its own once, and four times besides.
  uint64_t key_update_bytes_min = uint64_t{64} << 20;
  uint64_t key_updates() const { return key_updates_; }

 private:
  friend struct TlsCallbacks;
  static constexpr size_t kOutputFull = 128 << 10;
  static constexpr size_t kOutputSize = kOutputFull + 2 * kTlsRecordSize;
  static constexpr size_t kOutputMax = 1 << 20;  // a flood of requests to answer ends here
  static constexpr size_t kInputSizeMin = 8 << 10, kInputSize = 128 << 10;

  explicit Tls(TransportPtr transport) : transport_(std::move(transport)) {}
  Io outcome(int result);
  bool is_starved() const { return input_begin_ == input_end_ && input_state_.state == Io::State::Blocked; }

  TransportPtr transport_;
  std::unique_ptr<SSL, TlsRelease> ssl_;
  std::optional<PeerId> expected_;
  PeerId remote_;
  bool is_wrong_peer_ = false;
  Error error_;

  std::vector<std::byte> input_;  // read from the transport, not yet by OpenSSL
  size_t input_begin_ = 0, input_end_ = 0;
  size_t input_max_ = kInputSizeMin;
  Io input_state_ = Io::blocked();  // what the transport said last
  std::vector<std::byte> output_;
  size_t output_begin_ = 0, output_end_ = 0;
  uint64_t bytes_since_key_update_ = 0, key_updates_ = 0;
  uint64_t bytes_received_ = 0, key_updates_received_ = 0;
};

}  // namespace weft::net
