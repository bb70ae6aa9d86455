// A TCP socket as a Transport. Internal to net/.
#pragma once

#include <asio/ip/tcp.hpp>

#include "net/census.h"
#include "net/context.h"
#include "net/endpoint.h"
#include "net/transport.h"

namespace weft::net {

// Of a socket that is connected: without Nagle's delay, with keep-alive.
TransportPtr make_tcp_transport(std::shared_ptr<Context> context, asio::ip::tcp::socket socket);

AddressKey address_key(asio::ip::address address);
Endpoint to_endpoint(const asio::ip::tcp::endpoint& endpoint);

}  // namespace weft::net
