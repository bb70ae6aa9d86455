#include "web/server.h"

#include <algorithm>
#include <cstdio>
#include <future>
#include <thread>

#include "net/byte_listener.h"
#include "web/connection.h"
#include "web/tls.h"

namespace weft::web {

namespace {

class LoopServer final : public Server {
 public:
  LoopServer(const ServerOptions& options, std::shared_ptr<Handler> handler)
      : hub_(std::make_shared<Hub>(options.limits)) {
    hub_->handler = std::move(handler);
  }
  ~LoopServer() override { stop(Duration::zero()); }

  Status open(const ServerOptions& options);
  net::Endpoint endpoint() const override { return endpoint_; }
  ServerStats stats() const override { return hub_->current_stats(); }
  void stop(Duration deadline) override;

 private:
  void arrive(net::TransportPtr transport, const net::AddressKey& from);
  bool make_room(const net::AddressKey& newcomer);
  void wind_up(Duration deadline);

  const std::shared_ptr<Hub> hub_;
  std::shared_ptr<const TlsContext> tls_;
  std::unique_ptr<net::ByteListener> listener_;
  net::Endpoint endpoint_;
  std::shared_ptr<net::Census> census_ = std::make_shared<net::Census>();
  std::unique_ptr<net::Loop::Timer> end_;
  std::jthread thread_;
};

Status LoopServer::open(const ServerOptions& options) {
  if (options.certificate_file.empty() != options.key_file.empty())
    return fail(ErrorCode::InvalidArgument, "a certificate and its key are given together, or neither");
  if (!options.certificate_file.empty()) {
    WEFT_TRY(tls_, TlsContext::load(options.certificate_file, options.key_file));
  }
  WEFT_TRY(listener_,
           net::ByteListener::open(*hub_->loop, options.endpoint,
                                   [this](net::TransportPtr transport, const net::AddressKey& from) {
                                     arrive(std::move(transport), from);
                                   }));
  endpoint_ = listener_->endpoint();
  hub_->handler->on_begin([weak = std::weak_ptr(hub_)] {
    const auto hub = weak.lock();
    return hub ? hub->current_stats() : ServerStats{};
  });
  thread_ = std::jthread([loop = hub_->loop] { loop->run(); });
  return {};
}

void LoopServer::arrive(net::TransportPtr transport, const net::AddressKey& from) {
  hub_->count(&ServerStats::connections);
  if (!make_room(from)) return hub_->count(&ServerStats::refused_by_limit);
  if (tls_) {
    auto secured = tls_->wrap(*hub_->loop, std::move(transport));
    if (!secured) return hub_->count(&ServerStats::failed);
    transport = std::move(*secured);
  }
  const auto connection =
      std::make_shared<HttpConnection>(hub_, std::move(transport), from, census_->enter(from));
  hub_->connections.push_back(connection);
  hub_->count(&ServerStats::open_connections);
  connection->begin();
}

bool LoopServer::make_room(const net::AddressKey& newcomer) {
  const ServerLimits& limits = hub_->limits;
  const bool is_address_full = census_->size_at(newcomer) >= limits.connections_max_per_address;
  if (!is_address_full && census_->size() < limits.connections_max) return true;
  if (census_->size() == 0) return false;
  const net::AddressKey where = is_address_full ? newcomer : census_->fullest();
  const Instant now = hub_->loop->now();
  const auto oldest = std::ranges::find_if(hub_->connections, [&](const auto& connection) {
    return connection->from == where && connection->is_idle(now);
  });
  if (oldest == hub_->connections.end()) return false;
  hub_->count(&ServerStats::displaced);
  // NOLINTNEXTLINE(performance-unnecessary-copy-initialization): its end takes it off the list.
  const auto leaving = *oldest;
  leaving->close();
  return true;
}

void LoopServer::wind_up(Duration deadline) {
  listener_.reset();
  hub_->is_stopping = true;
  const auto all = hub_->connections;
  if (all.empty()) return hub_->on_empty();
  for (const auto& connection : all) connection->wind_up();
  end_ = hub_->loop->after(deadline, [hub = hub_] {
    const auto rest = hub->connections;
    for (const auto& connection : rest) connection->close();
  });
}

void LoopServer::stop(Duration deadline) {
  if (!thread_.joinable()) return;
  const auto done = std::make_shared<std::promise<void>>();
  hub_->loop->post([this, done, deadline] {
    // Behind all that was posted before, which holds connections.
    hub_->on_empty = [loop = hub_->loop, done] { loop->post([done] { done->set_value(); }); };
    wind_up(deadline);
  });
  done->get_future().wait();
  hub_->loop->stop();
  thread_.join();
  end_.reset();
  hub_->on_empty = nullptr;
}

}  // namespace

bool is_loopback(const net::Endpoint& endpoint) {
  return endpoint.host == "localhost" || endpoint.host == "::1" || endpoint.host.starts_with("127.");
}

Response Handler::on_refused(int status, const std::string& message) {
  return {.status = status, .content_type = "text/plain; charset=utf-8", .body = message + "\n"};
}

Result<std::unique_ptr<Server>> Server::start(const ServerOptions& options,
                                              std::shared_ptr<Handler> handler) {
  auto server = std::make_unique<LoopServer>(options, std::move(handler));
  WEFT_TRY_STATUS(server->open(options));
  return std::unique_ptr<Server>(std::move(server));
}

Metrics to_metrics(const ServerStats& stats) {
  Metrics metrics;
  const auto count = [&](const char* name, const char* help, uint64_t value) {
    metrics.declare_counter(name, help);
    metrics.add(name, static_cast<double>(value));
  };
  const auto gauge = [&](const char* name, const char* help, uint64_t value) {
    metrics.declare_gauge(name, help);
    metrics.set(name, static_cast<double>(value));
  };
  count("weft_http_connections_total", "Connections that were accepted.", stats.connections);
  count("weft_http_requests_total", "Requests that were read and handed on.", stats.requests);
  count("weft_http_streams_total", "Streams of events that were begun.", stats.streams);
  count("weft_http_connections_refused_total", "Connections beyond a limit.", stats.refused_by_limit);
  count("weft_http_connections_displaced_total", "Idle connections that made room.", stats.displaced);
  count("weft_http_connections_timed_out_total", "Connections that a deadline ended.", stats.timed_out);
  count("weft_http_connections_failed_total", "Connections that TLS or the system ended.", stats.failed);
  count("weft_http_requests_refused_total", "Requests that could not be read.", stats.refused_requests);
  count("weft_http_clients_slow_total", "Streams whose client read too slowly.", stats.too_slow);
  count("weft_http_clients_gone_total", "Clients that left before their answer ended.", stats.gone);
  gauge("weft_http_connections", "Connections that are open.", stats.open_connections);
  gauge("weft_http_requests", "Requests that are being answered.", stats.open_requests);
  return metrics;
}

}  // namespace weft::web
