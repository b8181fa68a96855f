import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.Deque;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.IntFunction;
import org.apache.bookkeeper.client.BookKeeper;
import org.apache.bookkeeper.client.BookKeeperAdmin;
import org.apache.bookkeeper.client.LedgerHandle;
import org.apache.bookkeeper.client.api.LedgerEntries;
import org.apache.bookkeeper.client.api.LedgerEntry;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.client.api.WriteHandle;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.server.EmbeddedServer;
import org.apache.bookkeeper.server.conf.BookieConfiguration;
import org.apache.zookeeper.server.NIOServerCnxnFactory;
import org.apache.zookeeper.server.ZooKeeperServer;

/**
 * Apache BookKeeper under load: bookies, ZooKeeper and a client in one JVM, everything on one disk.
 *
 * <p>Usage: {@code PeerLoad DIRECTORY BOOKIES [FLUSH]}, where {@code FLUSH} is {@code true} for
 * {@code journalFlushWhenQueueEmpty}. E=3 Qw=3 Qa=2, CRC32C, journals synced, DbLedgerStorage. Each line on stdin is
 * a command and is answered with one JSON object:
 *
 * <pre>
 * sync COUNT SIZE                 adds one after the other:    p50_ms
 * async BYTES SIZE WINDOW         adds in a window:            per_s mb_per_s ledger
 * read LEDGER BATCH               all entries of it:           per_s mb_per_s
 * create COUNT WIDTH              create and close:            per_s ms
 * recover COUNT ENTRIES WIDTH     open what nobody closed:     per_s ms
 * bookie LEDGERS ENTRIES SIZE     recoverBookieData:           per_s mb_per_s
 * delete LEDGER
 * </pre>
 */
public final class PeerLoad {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final byte[] PASSWORD = "pw".getBytes();
    private static final int ENSEMBLE = 3;
    private static final int WRITE_QUORUM = 3;
    private static final int ACK_QUORUM = 2;
    private static final int SMALL_BYTES = 1024;

    private final Path directory;
    private final boolean flush;
    private final String address;
    private final List<ServerConfiguration> configurations = new ArrayList<>();
    private final List<EmbeddedServer> servers = new ArrayList<>();
    private final BookKeeper client;
    private final BookKeeperAdmin admin;

    private PeerLoad(Path directory, int bookies, boolean flush) throws Exception {
        this.directory = directory;
        this.flush = flush;
        File state = Files.createDirectories(directory.resolve("zookeeper")).toFile();
        ZooKeeperServer zooKeeper = new ZooKeeperServer(state, state, 2000);
        NIOServerCnxnFactory connections = new NIOServerCnxnFactory();
        connections.configure(new InetSocketAddress("127.0.0.1", 0), 1000);
        connections.startup(zooKeeper);
        address = "zk+hierarchical://127.0.0.1:" + connections.getLocalPort() + "/ledgers";
        BookKeeperAdmin.initNewCluster(server());
        for (int i = 0; i < bookies; i++) {
            ServerConfiguration c = server();
            try (ServerSocket free = new ServerSocket(0, 1, InetAddress.getByName("127.0.0.1"))) {
                c.setBookiePort(free.getLocalPort());
            }
            Path home = directory.resolve("bookie" + i);
            c.setJournalDirName(Files.createDirectories(home.resolve("journal")).toString());
            c.setLedgerDirNames(new String[] {Files.createDirectories(home.resolve("ledgers")).toString()});
            configurations.add(c);
            servers.add(null);
            startBookie(i);
        }
        client = new BookKeeper(client());
        admin = new BookKeeperAdmin(client, client());
    }

    public static void main(String[] args) {
        try {
            PeerLoad load =
                new PeerLoad(Path.of(args[0]), Integer.parseInt(args[1]), args.length > 2 && Boolean.parseBoolean(args[2]));
            answer(Map.of("ready", true));
            BufferedReader commands = new BufferedReader(new InputStreamReader(System.in));
            for (String line = commands.readLine(); line != null; line = commands.readLine()) {
                answer(load.carryOut(line.trim().split("\\s+")));
            }
        } catch (Throwable broken) {
            answer(Map.of("error", String.valueOf(broken)));
        }
        Runtime.getRuntime().halt(0); // the threads of the bookies would keep the JVM alive
    }

    private Map<String, Object> carryOut(String[] words) throws Exception {
        long[] n = Arrays.stream(words).skip(1).mapToLong(Long::parseLong).toArray();
        return switch (words[0]) {
            case "sync" -> sync((int) n[0], (int) n[1]);
            case "async" -> async(n[0], (int) n[1], (int) n[2]);
            case "read" -> read(n[0], (int) n[1]);
            case "create" -> create((int) n[0], (int) n[1]);
            case "recover" -> recover((int) n[0], (int) n[1], (int) n[2]);
            case "bookie" -> bookie((int) n[0], (int) n[1], (int) n[2]);
            case "delete" -> {
                client.deleteLedger(n[0]);
                yield Map.of();
            }
            default -> throw new IllegalArgumentException(words[0]);
        };
    }

    // Writing and reading

    private Map<String, Object> sync(int count, int size) throws Exception {
        byte[] data = noise(size);
        double[] took = new double[count];
        LedgerHandle ledger = createHandle();
        for (int i = 0; i < count; i++) {
            long start = System.nanoTime();
            ledger.addEntry(data);
            took[i] = (System.nanoTime() - start) / 1e6;
        }
        ledger.close();
        client.deleteLedger(ledger.getId());
        return Map.of("p50_ms", median(took));
    }

    private Map<String, Object> async(long bytes, int size, int window) throws Exception {
        byte[] data = noise(size);
        Semaphore places = new Semaphore(window);
        AtomicInteger failed = new AtomicInteger();
        LedgerHandle ledger = createHandle();
        long count = bytes / size;
        long start = System.nanoTime();
        for (long i = 0; i < count; i++) {
            places.acquire();
            ledger.asyncAddEntry(
                data,
                (code, handle, entry, context) -> {
                    if (code != 0) {
                        failed.incrementAndGet();
                    }
                    places.release();
                },
                null);
        }
        places.acquire(window);
        Map<String, Object> figures = rates(count, count * size, start);
        ledger.close();
        check(failed.get() == 0, failed + " adds failed");
        figures.put("ledger", ledger.getId());
        return figures;
    }

    private Map<String, Object> read(long ledgerId, int batch) throws Exception {
        int ahead = 8;
        AtomicLong bytes = new AtomicLong();
        AtomicLong entries = new AtomicLong();
        try (LedgerHandle ledger = client.openLedger(ledgerId, BookKeeper.DigestType.CRC32C, PASSWORD)) {
            long last = ledger.getLastAddConfirmed();
            Deque<CompletableFuture<LedgerEntries>> asked = new ArrayDeque<>();
            long start = System.nanoTime();
            for (long first = 0; first <= last; first += batch) {
                if (asked.size() == ahead) {
                    count(asked.remove().get(), entries, bytes);
                }
                asked.add(ledger.readAsync(first, Math.min(last, first + batch - 1)).toCompletableFuture());
            }
            for (CompletableFuture<LedgerEntries> left : asked) {
                count(left.get(), entries, bytes);
            }
            check(entries.get() == last + 1, "read " + entries + " of " + (last + 1));
            return rates(entries.get(), bytes.get(), start);
        }
    }

    private static void count(LedgerEntries found, AtomicLong entries, AtomicLong bytes) {
        try (found) {
            for (LedgerEntry entry : found) {
                entries.incrementAndGet();
                bytes.addAndGet(entry.getEntryBuffer().readableBytes());
            }
        }
    }

    // Ledgers and bookies

    private Map<String, Object> create(int count, int width) throws Exception {
        long start = System.nanoTime();
        parallel(count, width, i -> createAsync().thenCompose(WriteHandle::closeAsync));
        return rates(count, 0, start);
    }

    private Map<String, Object> recover(int count, int entries, int width) throws Exception {
        byte[] data = noise(SMALL_BYTES);
        List<Long> left = Collections.synchronizedList(new ArrayList<>());
        parallel(count, 32, i -> createAsync().thenCompose(writer -> {
            left.add(writer.getId());
            CompletableFuture<Long> added = CompletableFuture.completedFuture(-1L);
            for (int k = 0; k < entries; k++) {
                added = added.thenCompose(previous -> writer.appendAsync(data));
            }
            return added;
        }));
        try (BookKeeper other = new BookKeeper(client())) {
            other.openLedger(left.get(0), BookKeeper.DigestType.CRC32C, PASSWORD).close(); // connects it
            AtomicInteger wrong = new AtomicInteger();
            long start = System.nanoTime();
            parallel(count - 1, width, i -> {
                CompletableFuture<Void> done = new CompletableFuture<>();
                other.asyncOpenLedger(left.get(i + 1), BookKeeper.DigestType.CRC32C, PASSWORD, (code, ledger, context) -> {
                    if (code != 0 || !ledger.isClosed() || ledger.getLastAddConfirmed() != entries - 1) {
                        wrong.incrementAndGet();
                    }
                    done.complete(null);
                }, null);
                return done;
            });
            Map<String, Object> figures = rates(count - 1, 0, start);
            check(wrong.get() == 0, wrong + " ledgers were not recovered");
            return figures;
        }
    }

    private Map<String, Object> bookie(int ledgers, int entries, int size) throws Exception {
        byte[] data = noise(size);
        awaitBookies(servers.size());
        parallel(ledgers, size > SMALL_BYTES ? 1 : 32, i -> createAsync().thenCompose(writer -> {
            CompletableFuture<?>[] added = new CompletableFuture<?>[entries];
            for (int k = 0; k < entries; k++) {
                added[k] = writer.appendAsync(data);
            }
            return CompletableFuture.allOf(added).thenCompose(all -> writer.closeAsync());
        }));
        BookieId lost = BookieId.parse("127.0.0.1:" + configurations.get(0).getBookiePort());
        List<LedgerMetadata> hit = holding(lost);
        long bytes = hit.stream().mapToLong(LedgerMetadata::getLength).sum();
        servers.get(0).getLifecycleComponentStack().close();
        awaitBookies(servers.size() - 1);
        long start = System.nanoTime();
        admin.recoverBookieData(lost);
        Map<String, Object> figures = rates(hit.size(), bytes, start);
        int left = holding(lost).size();
        startBookie(0);
        awaitBookies(servers.size());
        for (long ledgerId : admin.listLedgers()) {
            client.deleteLedger(ledgerId);
        }
        check(left == 0, left + " ledgers still name the lost bookie");
        return figures;
    }

    private List<LedgerMetadata> holding(BookieId bookie) throws Exception {
        List<LedgerMetadata> found = new ArrayList<>();
        for (long ledgerId : admin.listLedgers()) {
            LedgerMetadata metadata = client.getLedgerManager().readLedgerMetadata(ledgerId).get().getValue();
            if (metadata.getAllEnsembles().values().stream().anyMatch(ensemble -> ensemble.contains(bookie))) {
                found.add(metadata);
            }
        }
        return found;
    }

    private void awaitBookies(int count) throws Exception {
        while (admin.getAvailableBookies().size() != count) {
            Thread.sleep(50);
        }
        Thread.sleep(500); // until the client has noticed too
    }

    // Parts

    private void startBookie(int i) throws Exception {
        EmbeddedServer server = EmbeddedServer.builder(new BookieConfiguration(configurations.get(i))).build();
        server.getLifecycleComponentStack().start();
        servers.set(i, server);
    }

    private ServerConfiguration server() {
        ServerConfiguration c = new ServerConfiguration();
        c.setMetadataServiceUri(address);
        c.setZkTimeout(30_000);
        c.setAllowLoopback(true);
        c.setListeningInterface("lo");
        c.setAdvertisedAddress("127.0.0.1");
        c.setJournalSyncData(true);
        c.setJournalFlushWhenQueueEmpty(flush);
        c.setAutoRecoveryDaemonEnabled(false);
        c.setLedgerStorageClass("org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage");
        // All bookies share this JVM's memory, and each would take a quarter of it.
        c.setProperty("dbStorage_writeCacheMaxSizeMb", 128);
        c.setProperty("dbStorage_readAheadCacheMaxSizeMb", 128);
        c.setProperty("dbStorage_rocksDB_blockCacheSize", 32L << 20);
        return c;
    }

    private ClientConfiguration client() {
        ClientConfiguration c = new ClientConfiguration();
        c.setMetadataServiceUri(address);
        c.setZkTimeout(30_000);
        c.setThrottleValue(0); // the default lets 5,000 adds a second pass
        c.setAddEntryTimeout(60);
        c.setReadEntryTimeout(60);
        return c;
    }

    private LedgerHandle createHandle() throws Exception {
        return client.createLedger(ENSEMBLE, WRITE_QUORUM, ACK_QUORUM, BookKeeper.DigestType.CRC32C, PASSWORD);
    }

    private CompletableFuture<WriteHandle> createAsync() {
        return client.newCreateLedgerOp().withEnsembleSize(ENSEMBLE).withWriteQuorumSize(WRITE_QUORUM)
            .withAckQuorumSize(ACK_QUORUM).withDigestType(org.apache.bookkeeper.client.api.DigestType.CRC32C)
            .withPassword(PASSWORD).execute();
    }

    private static void parallel(int count, int width, IntFunction<CompletableFuture<?>> run) throws Exception {
        Semaphore places = new Semaphore(width);
        AtomicInteger failed = new AtomicInteger();
        for (int i = 0; i < count; i++) {
            places.acquire();
            run.apply(i).whenComplete((value, error) -> {
                if (error != null) {
                    failed.incrementAndGet();
                }
                places.release();
            });
        }
        places.acquire(width);
        check(failed.get() == 0, failed + " of " + count + " failed");
    }

    private static Map<String, Object> rates(long count, long bytes, long start) {
        double seconds = (System.nanoTime() - start) / 1e9;
        Map<String, Object> figures = new LinkedHashMap<>();
        figures.put("seconds", seconds);
        figures.put("per_s", count / seconds);
        figures.put("ms", 1000 * seconds / count);
        figures.put("mb_per_s", bytes / seconds / 1e6);
        return figures;
    }

    private static byte[] noise(int size) {
        byte[] data = new byte[size];
        new Random(7).nextBytes(data);
        return data;
    }

    private static double median(double[] values) {
        double[] sorted = values.clone();
        Arrays.sort(sorted);
        return sorted[sorted.length / 2];
    }

    private static void check(boolean holds, String complaint) {
        if (!holds) {
            throw new IllegalStateException(complaint);
        }
    }

    private static void answer(Map<String, Object> figures) {
        try {
            System.out.println(JSON.writeValueAsString(figures));
        } catch (Exception broken) {
            throw new IllegalStateException(broken);
        }
        System.out.flush();
    }
}
