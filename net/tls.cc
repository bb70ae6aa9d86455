#include "net/tls.h"

#include <openssl/bio.h>
#include <openssl/err.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "security/keys.h"

namespace weft::net {

namespace {
constexpr int kRecordsPerHandshakeTurn = 64;  // of both sides' ten
}

// What OpenSSL calls; the BIO's data and the SSL's app data are the Tls.
struct TlsCallbacks {
  static int write(BIO* bio, const char* bytes, size_t size, size_t* written) {
    auto& tls = *static_cast<Tls*>(BIO_get_data(bio));
    BIO_clear_retry_flags(bio);
    if (tls.output_begin_ == tls.output_end_) tls.output_begin_ = tls.output_end_ = 0;
    if (tls.output_.size() - tls.output_end_ < size) {
      if (tls.output_size() > 0)
        std::memmove(tls.output_.data(), tls.output_.data() + tls.output_begin_, tls.output_size());
      tls.output_end_ -= tls.output_begin_;
      tls.output_begin_ = 0;
      if (tls.output_end_ + size > Tls::kOutputMax) return 0;
      if (const size_t needed = tls.output_end_ + size; tls.output_.size() < needed)
        tls.output_.resize(
            std::min(std::max(2 * tls.output_.size(), needed), std::max(needed, Tls::kOutputSize)));
    }
    std::memcpy(tls.output_.data() + tls.output_end_, bytes, size);
    tls.output_end_ += size;
    *written = size;
    return 1;
  }

  static int read(BIO* bio, char* into, size_t size, size_t* got) {
    auto& tls = *static_cast<Tls*>(BIO_get_data(bio));
    BIO_clear_retry_flags(bio);
    if (tls.input_begin_ == tls.input_end_) {
      // Small until the bytes come faster than they are read: most connections carry little.
      if (tls.input_.size() < Tls::kInputSizeMin) tls.input_.resize(Tls::kInputSizeMin);
      if (tls.input_end_ == tls.input_.size() && tls.input_.size() < tls.input_max_)
        tls.input_.resize(tls.input_max_);
      tls.input_begin_ = tls.input_end_ = 0;
      tls.input_state_ = tls.transport_->read(tls.input_);
      if (tls.input_state_.state != Io::State::Ready) {
        if (tls.input_state_.state == Io::State::Blocked) BIO_set_retry_read(bio);
        return 0;
      }
      tls.input_end_ = tls.input_state_.size;
    }
    *got = std::min(size, tls.input_end_ - tls.input_begin_);
    std::memcpy(into, tls.input_.data() + tls.input_begin_, *got);
    tls.input_begin_ += *got;
    return 1;
  }

  static long control(BIO* bio, int command, long, void*) {
    const auto& tls = *static_cast<const Tls*>(BIO_get_data(bio));
    if (command == BIO_CTRL_FLUSH || command == BIO_CTRL_DUP) return 1;
    if (command == BIO_CTRL_EOF)
      return tls.input_begin_ == tls.input_end_ && tls.input_state_.state == Io::State::End ? 1 : 0;
    return 0;
  }

  // Replaces the verification of chains: the certificate is only a wrapping of the key, whose possession the
  // handshake proves.
  static int verify(X509_STORE_CTX* store, void*) {
    const auto* ssl =
        static_cast<const SSL*>(X509_STORE_CTX_get_ex_data(store, SSL_get_ex_data_X509_STORE_CTX_idx()));
    auto& tls = *static_cast<Tls*>(SSL_get_app_data(ssl));
    const X509* certificate = X509_STORE_CTX_get0_cert(store);
    const auto id = certificate != nullptr ? security::peer_id(X509_get0_pubkey(certificate)) : std::nullopt;
    if (!id) {
      X509_STORE_CTX_set_error(store, X509_V_ERR_UNSUPPORTED_SIGNATURE_ALGORITHM);
      return 0;
    }
    tls.remote_ = *id;
    if (tls.expected_ && *id != *tls.expected_) {
      tls.is_wrong_peer_ = true;
      X509_STORE_CTX_set_error(store, X509_V_ERR_CERT_REJECTED);
      return 0;
    }
    X509_STORE_CTX_set_error(store, X509_V_OK);
    return 1;
  }

  // Sees every message of TLS itself; those after the handshake are counted, for each costs the derivation of
  // keys and carries nothing.
  static void message(int is_sent, int, int type, const void* bytes, size_t size, SSL*, void* data) {
    if (is_sent != 0 || type != SSL3_RT_HANDSHAKE || size == 0 || data == nullptr) return;
    const auto kind = *static_cast<const uint8_t*>(bytes);
    if (kind == SSL3_MT_KEY_UPDATE || kind == SSL3_MT_NEWSESSION_TICKET)
      ++static_cast<Tls*>(data)->key_updates_received_;
  }

  static BIO_METHOD* method() {
    static BIO_METHOD* const kMethod = [] {
      BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "weft transport");
      WEFT_CHECK(made != nullptr);
      BIO_meth_set_write_ex(made, write);
      BIO_meth_set_read_ex(made, read);
      BIO_meth_set_ctrl(made, control);
      return made;
    }();
    return kMethod;
  }
};

Result<std::shared_ptr<const TlsSettings>> TlsSettings::make(const security::Identity& identity,
                                                             TlsSide side) {
  auto settings = std::make_shared<TlsSettings>();
  settings->side_ = side;
  settings->context_.reset(SSL_CTX_new(side == TlsSide::Client ? TLS_client_method() : TLS_server_method()));
  SSL_CTX* c = settings->context_.get();
  const security::Identity::Keys& keys = identity.keys();
  if (c == nullptr || SSL_CTX_set_min_proto_version(c, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_max_proto_version(c, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set_ciphersuites(c, "TLS_AES_128_GCM_SHA256:TLS_CHACHA20_POLY1305_SHA256") != 1 ||
      SSL_CTX_set1_groups_list(c, "X25519") != 1 || SSL_CTX_set1_sigalgs_list(c, "ed25519") != 1 ||
      SSL_CTX_use_certificate(c, keys.certificate.get()) != 1 ||
      SSL_CTX_use_PrivateKey(c, keys.key.get()) != 1 || SSL_CTX_set_num_tickets(c, 0) != 1)
    return fail(ErrorCode::Internal, "TLS cannot be set up: " + security::openssl_error());
  SSL_CTX_set_options(c, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
                             SSL_OP_CIPHER_SERVER_PREFERENCE);
  SSL_CTX_set_session_cache_mode(c, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_max_early_data(c, 0);
  SSL_CTX_set_mode(c, SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
  // Else one read goes on for as long as records without data come, and nothing else of the loop runs.
  SSL_CTX_clear_mode(c, SSL_MODE_AUTO_RETRY);
  SSL_CTX_set_msg_callback(c, TlsCallbacks::message);
  SSL_CTX_set_max_cert_list(c, 8 << 10);
  SSL_CTX_set_verify(c, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  SSL_CTX_set_cert_verify_callback(c, TlsCallbacks::verify, nullptr);
  return settings;
}

Result<std::unique_ptr<Tls>> Tls::make(const TlsSettings& settings, TransportPtr transport,
                                       std::optional<PeerId> expected, std::span<const std::byte> first) {
  std::unique_ptr<Tls> tls(new Tls(std::move(transport)));
  tls->expected_ = expected;
  tls->input_.assign(first.begin(), first.end());
  tls->input_end_ = first.size();
  tls->ssl_.reset(SSL_new(settings.get()));
  BIO* bio = BIO_new(TlsCallbacks::method());
  if (!tls->ssl_ || bio == nullptr) {
    BIO_free(bio);
    return fail(ErrorCode::ResourceExhausted, "TLS cannot begin: " + security::openssl_error());
  }
  BIO_set_data(bio, tls.get());
  BIO_set_init(bio, 1);
  SSL_set_bio(tls->ssl_.get(), bio, bio);
  SSL_set_app_data(tls->ssl_.get(), tls.get());
  SSL_set_msg_callback_arg(tls->ssl_.get(), tls.get());
  if (settings.side() == TlsSide::Client)
    SSL_set_connect_state(tls->ssl_.get());
  else
    SSL_set_accept_state(tls->ssl_.get());
  return tls;
}

Tls::~Tls() = default;

// What a result that is not success means.
Io Tls::outcome(int result) {
  switch (SSL_get_error(ssl_.get(), result)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
      return Io::blocked();
    case SSL_ERROR_ZERO_RETURN:
      return Io::end();
    default:
      break;
  }
  const unsigned long code = ERR_peek_last_error();
  const int reason = ERR_GET_LIB(code) == ERR_LIB_SSL ? ERR_GET_REASON(code) : 0;
  const std::string text = security::openssl_error();
  if (is_wrong_peer_)
    error_ = {ErrorCode::PermissionDenied, "it shows the key of " + to_string(remote_) + " and not of " +
                                               to_string(*expected_) +
                                               ": it is somebody else, or was set up anew"};
  else if (input_state_.state == Io::State::Failed)
    error_ = {ErrorCode::Unavailable, "connection lost: " + input_state_.error.message()};
  else if (input_state_.state == Io::State::End && input_begin_ == input_end_)
    error_ = {ErrorCode::Unavailable, "the other side hung up"};
  else if (reason == SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED || reason == SSL_R_SSLV3_ALERT_BAD_CERTIFICATE ||
           reason == SSL_R_SSLV3_ALERT_CERTIFICATE_UNKNOWN || reason == SSL_R_TLSV1_ALERT_ACCESS_DENIED ||
           reason == SSL_R_TLSV1_ALERT_UNKNOWN_CA || reason == SSL_R_SSLV3_ALERT_UNSUPPORTED_CERTIFICATE)
    error_ = {ErrorCode::PermissionDenied, "the other side refused this key (" + text + ")"};
  else
    error_ = {ErrorCode::Corrupted, "TLS failed: " + text};
  return Io::failed(std::make_error_code(std::errc::protocol_error));
}

Io Tls::handshake() {
  for (int turn = 0; turn < kRecordsPerHandshakeTurn; ++turn) {
    ERR_clear_error();
    const int result = SSL_do_handshake(ssl_.get());
    if (result == 1) return Io::ready(0);
    const Io io = outcome(result);
    if (io.state != Io::State::Blocked || is_starved()) return io;
  }
  error_ = {ErrorCode::Corrupted, "TLS failed: a handshake of records without end"};
  return Io::failed(std::make_error_code(std::errc::protocol_error));
}

Io Tls::read(std::span<std::byte> into) {
  ERR_clear_error();
  size_t size = 0;
  const int result = SSL_read_ex(ssl_.get(), into.data(), into.size(), &size);
  if (result == 1) {
    bytes_received_ += size;
    return Io::ready(size);
  }
  const Io io = outcome(result);
  if (io.state != Io::State::Blocked) return io;
  if (key_updates_received_ > (bytes_received_ == 0 ? 0 : 4 + bytes_received_ / key_update_bytes_min)) {
    error_ = {ErrorCode::Corrupted, "TLS failed: the other side renews its key " +
                                        std::to_string(key_updates_received_) + " times within " +
                                        std::to_string(bytes_received_) + " bytes"};
    return Io::failed(std::make_error_code(std::errc::protocol_error));
  }
  return is_starved() ? io : Io::ready(0);
}

Io Tls::write(std::span<const std::byte> from) {
  ERR_clear_error();
  if (bytes_since_key_update_ >= key_update_bytes) {
    SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED);
    bytes_since_key_update_ = 0;
    ++key_updates_;
  }
  size_t size = 0;
  const int result = SSL_write_ex(ssl_.get(), from.data(), from.size(), &size);
  if (result != 1) return outcome(result);
  bytes_since_key_update_ += size;
  return Io::ready(size);
}

void Tls::say_goodbye() {
  ERR_clear_error();
  (void)SSL_shutdown(ssl_.get());
  ERR_clear_error();
}

Io Tls::flush() {
  while (output_begin_ < output_end_) {
    const Io io = transport_->write(std::span(output_).subspan(output_begin_, output_size()));
    if (io.state != Io::State::Ready) return io;
    output_begin_ += io.size;
  }
  output_begin_ = output_end_ = 0;
  return Io::ready(0);
}

}  // namespace weft::net
