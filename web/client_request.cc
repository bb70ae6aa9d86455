#include "web/client_request.h"

#include <array>

namespace weft::web {

namespace {

constexpr int kReadsATurn = 4;  // before others on the loop have theirs

}  // namespace

ClientRequest::ClientRequest(net::Loop& loop, const Url& url, const ClientTls* tls, std::string bytes,
                             Duration connect_deadline)
    : loop_(loop), url_(url), tls_(tls), out_(std::move(bytes)) {
  dial_ =
      net::connect_bytes(loop, url.endpoint, connect_deadline,
                         [this](Result<net::TransportPtr> connected) { on_connected(std::move(connected)); });
}

ClientRequest::~ClientRequest() {
  if (transport_) transport_->close();
}

ClientRequest::State ClientRequest::state() const {
  if (broken_) return State::Broken;
  if (!transport_) return State::Connecting;
  switch (parser_.state()) {
    case ResponseParser::State::Head:
      return State::Waiting;
    case ResponseParser::State::Complete:
      return State::Complete;
    case ResponseParser::State::Body:
    case ResponseParser::State::Refused:
      break;
  }
  return State::Answering;
}

void ClientRequest::fail_with(ErrorCode code, const std::string& what) {
  ++progress_;
  if (!broken_) broken_ = Error{code, to_string(url_) + ": " + what};
}

void ClientRequest::on_connected(Result<net::TransportPtr> connected) {
  ++progress_;
  if (connected && tls_ != nullptr)
    connected = tls_->wrap(loop_, std::move(*connected), url_.endpoint.host, tls_fault_);
  if (!connected) return fail_with(connected.error().code, connected.error().message);
  transport_ = std::move(*connected);
  transport_->set_events(this);
  flush();
  if (!broken_) on_readable();  // with TLS it is reads that shake hands
}

void ClientRequest::flush() {
  while (!broken_ && sent_ < out_.size()) {
    const net::Io io = transport_->write(std::as_bytes(std::span(out_).subspan(sent_)));
    if (io.state == net::Io::State::Blocked) return transport_->arm_write();
    // What cannot be sent may have been answered: 413, and a connection that is closed.
    if (io.state != net::Io::State::Ready) sent_ = out_.size();
    if (io.state == net::Io::State::Ready) sent_ += io.size;
    ++progress_;
  }
}

void ClientRequest::on_readable() {
  std::array<std::byte, 16 << 10> bytes;
  for (int turn = 0; turn < kReadsATurn && state() != State::Broken && state() != State::Complete; ++turn) {
    const net::Io io = transport_->read(bytes);
    if (io.state == net::Io::State::Blocked) return transport_->arm_read();
    ++progress_;
    if (io.state != net::Io::State::Ready) return end_input(io);
    parser_.feed({reinterpret_cast<const char*>(bytes.data()), io.size});
    if (parser_.state() == ResponseParser::State::Refused) fail_with(ErrorCode::Corrupted, parser_.fault());
  }
  if (state() == State::Waiting || state() == State::Answering) transport_->arm_read();
}

void ClientRequest::end_input(const net::Io& io) {
  if (!tls_fault_->empty()) return fail_with(ErrorCode::PermissionDenied, *tls_fault_);
  if (io.state == net::Io::State::Failed)
    return fail_with(ErrorCode::Unavailable, "the connection broke: " + io.error.message());
  parser_.end();
  if (parser_.state() == ResponseParser::State::Refused)
    fail_with(ErrorCode::Unavailable,
              state() == State::Waiting ? "the service hung up without an answer" : parser_.fault());
}

std::string render_http_request(const Url& url, std::string_view method, std::string_view path,
                                const std::string& extra, std::string_view body) {
  std::string out;
  out.append(method)
      .append(" ")
      .append(url.path)
      .append(path)
      .append(" HTTP/1.1\r\nHost: ")
      .append(host_of(url));
  out += "\r\nUser-Agent: weft\r\nConnection: close\r\n" + extra;
  if (method == "POST")
    out += "Content-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) + "\r\n";
  return out.append("\r\n").append(body);
}

}  // namespace weft::web
