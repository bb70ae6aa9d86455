#include "net/byte_listener.h"

#include "net/acceptor.h"
#include "net/tcp.h"

namespace weft::net {

namespace {

class TcpByteListener final : public ByteListener {
 public:
  TcpByteListener(const std::shared_ptr<Context>& context, OnConnection on_connection)
      : acceptor_(std::make_shared<Acceptor>(
            context, [context, on_connection = std::move(on_connection)](
                         asio::ip::tcp::socket socket, const asio::ip::tcp::endpoint& from) {
              const AddressKey key = address_key(from.address());
              on_connection(make_tcp_transport(context, std::move(socket)), key);
            })) {}
  ~TcpByteListener() override { acceptor_->close(); }
  Status open(const Endpoint& endpoint) { return acceptor_->open(endpoint); }
  Endpoint endpoint() const override { return acceptor_->bound(); }

 private:
  const std::shared_ptr<Acceptor> acceptor_;
};

}  // namespace

Result<std::unique_ptr<ByteListener>> ByteListener::open(Loop& loop, const Endpoint& endpoint,
                                                         OnConnection on_connection) {
  auto listener = std::make_unique<TcpByteListener>(loop.impl().context, std::move(on_connection));
  WEFT_TRY_STATUS(listener->open(endpoint));
  return std::unique_ptr<ByteListener>(std::move(listener));
}

}  // namespace weft::net
