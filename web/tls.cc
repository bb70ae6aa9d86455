#include "web/tls.h"

#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "base/check.h"

namespace weft::web {

namespace {

using net::Io;

struct Release {
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  void operator()(SSL* ssl) const { SSL_free(ssl); }
};
using ContextPtr = std::unique_ptr<SSL_CTX, Release>;
using SslPtr = std::unique_ptr<SSL, Release>;

// OpenSSL takes as much memory for a ClientHello as that announces, up to 128 KiB.
constexpr size_t kHelloHeadSize = 5 + 4, kHelloMax = 16 << 10;
constexpr int kTurnsPerRead = 16;        // records without data, before others have their turn
constexpr uint64_t kKeyUpdatesMax = 64;  // by a client; each costs the derivation of keys

std::string openssl_error() {
  char text[160] = "";
  if (const unsigned long code = ERR_get_error(); code != 0) ERR_error_string_n(code, text, sizeof(text));
  ERR_clear_error();
  return text;
}

std::error_code protocol_error() { return std::make_error_code(std::errc::protocol_error); }

class TlsTransport final : public net::Transport, net::Transport::Events {
 public:
  // `fault`: where it says what ended the connection; nothing: nobody asks.
  TlsTransport(net::Loop& loop, net::TransportPtr inner, std::shared_ptr<std::string> fault = nullptr)
      : loop_(loop), inner_(std::move(inner)), fault_(std::move(fault)) {}
  Status begin_server(SSL_CTX* context);
  Status begin_client(SSL_CTX* context, const std::string& host);

  void set_events(net::Transport::Events* events) override {
    events_ = events;
    inner_->set_events(this);
  }
  Io read(std::span<std::byte> into) override;
  Io write(std::span<const std::byte> from) override;
  void arm_read() override;
  void arm_write() override;
  size_t unsent() override { return inner_->unsent(); }
  void set_unsent_max(size_t size) override { inner_->set_unsent_max(size); }
  void shut_write() override;
  void close() override {
    events_ = nullptr;
    inner_->close();
  }
  const std::string& remote_address() const override { return inner_->remote_address(); }

 private:
  friend struct Bio;
  Status begin(SSL_CTX* context);
  Io read_record(std::span<std::byte> into);
  void note_fault();
  void on_readable() override {
    if (events_ != nullptr) events_->on_readable();
  }
  void on_writable() override {
    if (events_ == nullptr) return;
    // The handshake may have waited for this.
    if (is_read_blocked_by_write_) {
      is_read_blocked_by_write_ = false;
      events_->on_readable();
    } else {
      events_->on_writable();
    }
  }
  bool is_hello_too_large() const {
    const auto byte = [&](size_t i) { return std::to_integer<size_t>(first_[i]); };
    return byte(5) == 1 && (byte(6) << 16 | byte(7) << 8 | byte(8)) > kHelloMax;
  }

  net::Loop& loop_;
  net::TransportPtr inner_;
  const std::shared_ptr<std::string> fault_;
  net::Transport::Events* events_ = nullptr;
  SslPtr ssl_;
  Io input_ = Io::blocked();  // what the inner transport said last
  bool is_read_blocked_by_write_ = false;
  bool is_write_waiting_ = false;  // for the end of the handshake, which reads make
  bool has_more_ = false;          // records wait that no event will tell of
  std::array<std::byte, kHelloHeadSize> first_{};
  size_t first_size_ = 0;
  uint64_t key_updates_ = 0;
  std::shared_ptr<bool> is_alive_ = std::make_shared<bool>(true);
};

// What OpenSSL calls; the BIO's data is the transport.
struct Bio {
  static int read(BIO* bio, char* into, size_t size, size_t* got) {
    auto& tls = *static_cast<TlsTransport*>(BIO_get_data(bio));
    BIO_clear_retry_flags(bio);
    tls.input_ = tls.inner_->read(std::as_writable_bytes(std::span(into, size)));
    if (tls.input_.state == Io::State::Blocked) BIO_set_retry_read(bio);
    if (tls.input_.state != Io::State::Ready) return 0;
    *got = tls.input_.size;
    for (size_t i = 0; i < *got && tls.first_size_ < kHelloHeadSize; ++i)
      tls.first_[tls.first_size_++] = static_cast<std::byte>(into[i]);
    if (tls.first_size_ == kHelloHeadSize && tls.is_hello_too_large()) {
      tls.input_ = Io::failed(protocol_error());
      return 0;
    }
    return 1;
  }
  static int write(BIO* bio, const char* bytes, size_t size, size_t* written) {
    auto& tls = *static_cast<TlsTransport*>(BIO_get_data(bio));
    BIO_clear_retry_flags(bio);
    const Io io = tls.inner_->write(std::as_bytes(std::span(bytes, size)));
    if (io.state == Io::State::Blocked) BIO_set_retry_write(bio);
    if (io.state != Io::State::Ready) return 0;
    *written = io.size;
    return 1;
  }
  static long control(BIO*, int command, long, void*) {
    return command == BIO_CTRL_FLUSH || command == BIO_CTRL_DUP ? 1 : 0;
  }
  static void message(int is_sent, int, int type, const void* bytes, size_t size, SSL*, void* data) {
    if (is_sent == 0 && type == SSL3_RT_HANDSHAKE && size > 0 && data != nullptr &&
        *static_cast<const uint8_t*>(bytes) == SSL3_MT_KEY_UPDATE)
      ++static_cast<TlsTransport*>(data)->key_updates_;
  }
  static BIO_METHOD* method() {
    static BIO_METHOD* const kMethod = [] {
      BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "weft http");
      WEFT_CHECK(made != nullptr);
      BIO_meth_set_write_ex(made, write);
      BIO_meth_set_read_ex(made, read);
      BIO_meth_set_ctrl(made, control);
      return made;
    }();
    return kMethod;
  }
};

Status TlsTransport::begin(SSL_CTX* context) {
  ssl_.reset(SSL_new(context));
  BIO* bio = BIO_new(Bio::method());
  if (!ssl_ || bio == nullptr) {
    BIO_free(bio);
    return fail(ErrorCode::ResourceExhausted, "TLS cannot begin: " + openssl_error());
  }
  BIO_set_data(bio, this);
  BIO_set_init(bio, 1);
  SSL_set_bio(ssl_.get(), bio, bio);
  SSL_set_msg_callback_arg(ssl_.get(), this);
  return {};
}

Status TlsTransport::begin_server(SSL_CTX* context) {
  WEFT_TRY_STATUS(begin(context));
  SSL_set_accept_state(ssl_.get());
  return {};
}

Status TlsTransport::begin_client(SSL_CTX* context, const std::string& host) {
  WEFT_TRY_STATUS(begin(context));
  SSL* ssl = ssl_.get();
  SSL_set_connect_state(ssl);
  SSL_set_hostflags(ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
  // An address is looked for among the certificate's addresses, and is not sent as a name.
  const bool is_address = X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host.c_str()) == 1;
  ERR_clear_error();
  const bool is_name = !is_address && SSL_set1_host(ssl, host.c_str()) == 1 &&
                       SSL_set_tlsext_host_name(ssl, host.c_str()) == 1;
  if (is_address || is_name) return {};
  return fail(ErrorCode::InvalidArgument,
              host + " is no name that a certificate could have: " + openssl_error());
}

void TlsTransport::note_fault() {
  if (!fault_) return;
  const long verdict = SSL_get_verify_result(ssl_.get());
  *fault_ = verdict != X509_V_OK
                ? std::string("its certificate is not trusted: ") + X509_verify_cert_error_string(verdict)
                : "TLS failed: " + openssl_error();
}

Io TlsTransport::read(std::span<std::byte> into) {
  const Io io = read_record(into);
  if (is_write_waiting_ && SSL_is_init_finished(ssl_.get()) != 0) {
    is_write_waiting_ = false;
    inner_->arm_write();
  }
  return io;
}

Io TlsTransport::read_record(std::span<std::byte> into) {
  has_more_ = false;
  for (int turn = 0; turn < kTurnsPerRead; ++turn) {
    ERR_clear_error();
    size_t size = 0;
    const int result = SSL_read_ex(ssl_.get(), into.data(), into.size(), &size);
    if (result == 1) return Io::ready(size);
    if (key_updates_ > kKeyUpdatesMax) return Io::failed(protocol_error());
    switch (SSL_get_error(ssl_.get(), result)) {
      case SSL_ERROR_WANT_READ:
        if (input_.state == Io::State::Blocked) return Io::blocked();
        break;
      case SSL_ERROR_WANT_WRITE:
        is_read_blocked_by_write_ = true;
        return Io::blocked();
      case SSL_ERROR_ZERO_RETURN:
        return Io::end();
      default:
        if (input_.state != Io::State::End) note_fault();
        ERR_clear_error();
        return input_.state == Io::State::End ? Io::end() : Io::failed(protocol_error());
    }
  }
  has_more_ = true;
  return Io::blocked();
}

Io TlsTransport::write(std::span<const std::byte> from) {
  ERR_clear_error();
  size_t size = 0;
  const int result = SSL_write_ex(ssl_.get(), from.data(), from.size(), &size);
  if (result == 1) return Io::ready(size);
  const int error = SSL_get_error(ssl_.get(), result);
  ERR_clear_error();
  return error == SSL_ERROR_WANT_WRITE || error == SSL_ERROR_WANT_READ ? Io::blocked()
                                                                       : Io::failed(protocol_error());
}

void TlsTransport::arm_write() {
  if (SSL_is_init_finished(ssl_.get()) == 0)
    is_write_waiting_ = true;
  else
    inner_->arm_write();
}

void TlsTransport::arm_read() {
  if (is_read_blocked_by_write_) return inner_->arm_write();
  if (!has_more_ && SSL_has_pending(ssl_.get()) == 0) return inner_->arm_read();
  loop_.post([this, alive = std::weak_ptr(is_alive_)] {
    if (!alive.expired()) on_readable();
  });
}

void TlsTransport::shut_write() {
  ERR_clear_error();
  if (SSL_is_init_finished(ssl_.get()) != 0) (void)SSL_shutdown(ssl_.get());
  ERR_clear_error();
  inner_->shut_write();
}

int choose_protocol(SSL*, const unsigned char** out, unsigned char* out_size, const unsigned char* in,
                    unsigned int in_size, void*) {
  static constexpr unsigned char kHttp[] = "\x08http/1.1";
  unsigned char* chosen = nullptr;
  if (SSL_select_next_proto(&chosen, out_size, kHttp, sizeof(kHttp) - 1, in, in_size) !=
      OPENSSL_NPN_NEGOTIATED)
    return SSL_TLSEXT_ERR_NOACK;
  *out = chosen;
  return SSL_TLSEXT_ERR_OK;
}

class LoadedContext final : public TlsContext {
 public:
  explicit LoadedContext(ContextPtr context) : context_(std::move(context)) {}
  Result<net::TransportPtr> wrap(net::Loop& loop, net::TransportPtr transport) const override {
    auto tls = std::make_unique<TlsTransport>(loop, std::move(transport));
    WEFT_TRY_STATUS(tls->begin_server(context_.get()));
    return net::TransportPtr(std::move(tls));
  }

 private:
  const ContextPtr context_;
};

// What both sides have.
void set_modes(SSL_CTX* context) {
  SSL_CTX_set_session_cache_mode(context, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(context, SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_ENABLE_PARTIAL_WRITE |
                                SSL_MODE_RELEASE_BUFFERS);
  SSL_CTX_clear_mode(context, SSL_MODE_AUTO_RETRY);
  SSL_CTX_set_msg_callback(context, Bio::message);
}

Result<ContextPtr> make_context() {
  ContextPtr context(SSL_CTX_new(TLS_server_method()));
  SSL_CTX* c = context.get();
  if (c == nullptr || SSL_CTX_set_min_proto_version(c, TLS1_3_VERSION) != 1 ||
      SSL_CTX_set1_groups_list(c, "X25519:P-256") != 1 || SSL_CTX_set_num_tickets(c, 0) != 1)
    return fail(ErrorCode::Internal, "TLS cannot be set up: " + openssl_error());
  SSL_CTX_set_options(c, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
                             SSL_OP_CIPHER_SERVER_PREFERENCE | SSL_OP_IGNORE_UNEXPECTED_EOF);
  SSL_CTX_set_max_early_data(c, 0);
  set_modes(c);
  SSL_CTX_set_alpn_select_cb(c, choose_protocol, nullptr);
  // A key with a password is refused; else OpenSSL would ask at the terminal.
  SSL_CTX_set_default_passwd_cb(c, [](char*, int, int, void*) { return 0; });
  return context;
}

class LoadedClientTls final : public ClientTls {
 public:
  explicit LoadedClientTls(ContextPtr context) : context_(std::move(context)) {}
  Result<net::TransportPtr> wrap(net::Loop& loop, net::TransportPtr transport, const std::string& host,
                                 std::shared_ptr<std::string> fault) const override {
    auto tls = std::make_unique<TlsTransport>(loop, std::move(transport), std::move(fault));
    WEFT_TRY_STATUS(tls->begin_client(context_.get(), host));
    return net::TransportPtr(std::move(tls));
  }

 private:
  const ContextPtr context_;
};

Result<ContextPtr> make_client_context() {
  static constexpr unsigned char kHttp[] = "\x08http/1.1";
  ContextPtr context(SSL_CTX_new(TLS_client_method()));
  SSL_CTX* c = context.get();
  if (c == nullptr || SSL_CTX_set_min_proto_version(c, TLS1_2_VERSION) != 1 ||
      SSL_CTX_set_alpn_protos(c, kHttp, sizeof(kHttp) - 1) != 0)
    return fail(ErrorCode::Internal, "TLS cannot be set up: " + openssl_error());
  SSL_CTX_set_options(c, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_verify(c, SSL_VERIFY_PEER, nullptr);
  set_modes(c);
  return context;
}

Status cannot_use(const std::string& file, const std::string& what) {
  if (std::error_code error; !std::filesystem::exists(file, error))
    return fail(ErrorCode::NotFound, file + ": there is no such file");
  return fail(ErrorCode::InvalidArgument, file + ": " + what + " (" + openssl_error() + ")");
}

}  // namespace

Result<std::shared_ptr<const TlsContext>> TlsContext::load(const std::string& certificate_file,
                                                           const std::string& key_file) {
  WEFT_TRY(ContextPtr context, make_context());
  ERR_clear_error();
  if (SSL_CTX_use_certificate_chain_file(context.get(), certificate_file.c_str()) != 1)
    WEFT_TRY_STATUS(cannot_use(certificate_file, "it is no certificate in PEM"));
  if (SSL_CTX_use_PrivateKey_file(context.get(), key_file.c_str(), SSL_FILETYPE_PEM) != 1)
    WEFT_TRY_STATUS(cannot_use(key_file, "it is no key in PEM, or not that of " + certificate_file));
  return std::shared_ptr<const TlsContext>(std::make_shared<LoadedContext>(std::move(context)));
}

Result<std::shared_ptr<const ClientTls>> ClientTls::load(const std::string& ca_file) {
  WEFT_TRY(ContextPtr context, make_client_context());
  ERR_clear_error();
  if (ca_file.empty() && SSL_CTX_set_default_verify_paths(context.get()) != 1)
    return fail(ErrorCode::Internal, "the system's certificates cannot be read: " + openssl_error());
  if (!ca_file.empty() && SSL_CTX_load_verify_file(context.get(), ca_file.c_str()) != 1)
    WEFT_TRY_STATUS(cannot_use(ca_file, "it has no certificates in PEM"));
  return std::shared_ptr<const ClientTls>(std::make_shared<LoadedClientTls>(std::move(context)));
}

}  // namespace weft::web
