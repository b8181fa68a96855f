import com.fasterxml.jackson.databind.ObjectMapper;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.HashSet;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.net.URI;
import org.apache.bookkeeper.bookie.Cookie;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.conf.ServerConfiguration;
import org.apache.bookkeeper.discover.BookieServiceInfo;
import org.apache.bookkeeper.discover.RegistrationClient;
import org.apache.bookkeeper.discover.RegistrationManager;
import org.apache.bookkeeper.meta.LedgerAuditorManager;
import org.apache.bookkeeper.meta.LedgerLayout;
import org.apache.bookkeeper.meta.LedgerManager;
import org.apache.bookkeeper.meta.LedgerManagerFactory;
import org.apache.bookkeeper.meta.LedgerMetadataSerDe;
import org.apache.bookkeeper.meta.LedgerUnderreplicationManager;
import org.apache.bookkeeper.meta.MetadataBookieDriver;
import org.apache.bookkeeper.meta.MetadataClientDriver;
import org.apache.bookkeeper.meta.MetadataDrivers;
import org.apache.bookkeeper.meta.UnderreplicatedLedger;
import org.apache.bookkeeper.meta.ZkLedgerUnderreplicationManager;
import org.apache.bookkeeper.net.BookieId;
import org.apache.bookkeeper.proto.DataFormats.BookieServiceInfoFormat;
import org.apache.bookkeeper.stats.NullStatsLogger;
import org.apache.bookkeeper.versioning.Versioned;
import org.apache.zookeeper.ZooKeeper;
import org.apache.zookeeper.data.Stat;

/**
 * Reads a cluster's metadata with Apache BookKeeper's own classes and says what they see.
 *
 * <p>Usage: {@code MetadataJudge HOST:PORT ROOT}. One JSON object a line on stdout, of the kinds
 * {@code layout}, {@code instance}, {@code cookie}, {@code bookie}, {@code ledger}, {@code autorecovery}, {@code task}
 * and {@code auditor}. Where {@code canonical} is
 * true, BookKeeper writes the very bytes that it read. What it cannot read, or would never find, is named on stderr,
 * one node a line, and the exit code is 1.
 */
public final class MetadataJudge {
    private static final ObjectMapper JSON = new ObjectMapper();

    private final String root;
    private final ZooKeeper zk;
    private final Set<String> seen = new HashSet<>();
    private final List<String> complaints = new ArrayList<>();

    private MetadataJudge(String root, ZooKeeper zk) {
        this.root = root;
        this.zk = zk;
    }

    public static void main(String[] args) throws Exception {
        if (args.length != 2) {
            System.err.println("usage: MetadataJudge HOST:PORT ROOT");
            System.exit(2);
        }
        String uri = "zk+hierarchical://" + args[0] + args[1];
        ScheduledExecutorService scheduler = Executors.newSingleThreadScheduledExecutor();
        ZooKeeper zk = new ZooKeeper(args[0], 30_000, event -> { });
        MetadataJudge judge = new MetadataJudge(args[1], zk);
        ServerConfiguration server = new ServerConfiguration();
        server.setMetadataServiceUri(uri);
        ClientConfiguration client = new ClientConfiguration();
        client.setMetadataServiceUri(uri);
        try (MetadataBookieDriver bookies = MetadataDrivers.getBookieDriver(URI.create(uri));
                MetadataClientDriver clients = MetadataDrivers.getClientDriver(URI.create(uri))) {
            bookies.initialize(server, NullStatsLogger.INSTANCE);
            clients.initialize(client, scheduler, NullStatsLogger.INSTANCE, Optional.empty());
            try (RegistrationManager manager = bookies.createRegistrationManager();
                    LedgerManager ledgers = clients.getLedgerManagerFactory().newLedgerManager()) {
                judge.layout();
                judge.instance(manager);
                judge.cookies(manager);
                judge.bookies(clients.getRegistrationClient());
                judge.ledgers(ledgers);
                judge.underreplication(clients.getLedgerManagerFactory());
                judge.overlooked(judge.root);
            }
        } catch (Exception error) {
            judge.complaints.add(judge.root + ": " + reason(error));
        }
        zk.close();
        scheduler.shutdownNow();
        judge.complaints.forEach(System.err::println);
        System.exit(judge.complaints.isEmpty() ? 0 : 1);
    }

    private void layout() throws Exception {
        String path = root + "/LAYOUT";
        byte[] stored = read(path, new Stat());
        LedgerLayout layout = LedgerLayout.parseLayout(stored);
        say("layout", "factory", layout.getManagerFactoryClass(), "version", layout.getManagerVersion(),
            "canonical", Arrays.equals(layout.serialize(), stored));
    }

    private void instance(RegistrationManager manager) throws Exception {
        seen.add(root + "/INSTANCEID");
        say("instance", "id", manager.getClusterInstanceId());
    }

    private void cookies(RegistrationManager manager) throws Exception {
        for (String name : zk.getChildren(root + "/cookies", false)) {
            String path = root + "/cookies/" + name;
            try {
                byte[] stored = read(path, new Stat());
                Versioned<Cookie> cookie = Cookie.readFromRegistrationManager(manager, BookieId.parse(name));
                String text = cookie.getValue().toString();
                say("cookie", "bookie", name, "text", text,
                    "version", cookie.getVersion().toString(),
                    "canonical", Arrays.equals(text.getBytes(StandardCharsets.UTF_8), stored));
            } catch (Exception error) {
                complaints.add(path + ": " + reason(error));
            }
        }
    }

    private void bookies(RegistrationClient client) throws Exception {
        Set<BookieId> writable = client.getWritableBookies().get().getValue();
        Set<BookieId> readonly = client.getReadOnlyBookies().get().getValue();
        for (boolean isReadonly : new boolean[] {false, true}) {
            for (BookieId bookie : isReadonly ? readonly : writable) {
                String path = root + "/available/" + (isReadonly ? "readonly/" : "") + bookie;
                try {
                    Stat stat = new Stat();
                    // The client makes something up when it cannot parse the bytes, so they are parsed here as well.
                    BookieServiceInfoFormat message = BookieServiceInfoFormat.parseFrom(read(path, stat));
                    BookieServiceInfo info = client.getBookieServiceInfo(bookie).get().getValue();
                    List<Map<String, Object>> endpoints = new ArrayList<>();
                    for (BookieServiceInfo.Endpoint endpoint : info.getEndpoints()) {
                        endpoints.add(pairs("id", endpoint.getId(), "host", endpoint.getHost(),
                            "port", endpoint.getPort(), "protocol", endpoint.getProtocol()));
                    }
                    say("bookie", "id", bookie.toString(), "readonly", isReadonly,
                        "ephemeral", stat.getEphemeralOwner() != 0, "endpoints", endpoints,
                        "properties", info.getProperties(),
                        "unknown_fields", message.getUnknownFields().asMap().size());
                } catch (Exception error) {
                    complaints.add(path + ": " + reason(error));
                }
            }
        }
    }

    private void ledgers(LedgerManager manager) throws Exception {
        LedgerMetadataSerDe format = new LedgerMetadataSerDe();
        LedgerManager.LedgerRangeIterator ranges = manager.getLedgerRanges(30_000);
        while (ranges.hasNext()) {
            for (long id : ranges.next().getLedgers()) {
                String path = path(id);
                try {
                    Versioned<LedgerMetadata> read = manager.readLedgerMetadata(id).get();
                    LedgerMetadata metadata = read.getValue();
                    Stat stat = new Stat();
                    byte[] stored = read(path, stat);
                    LedgerMetadata parsed = format.parseConfig(stored, id, Optional.of(stat.getCtime()));
                    Map<String, List<String>> fragments = new LinkedHashMap<>();
                    metadata.getAllEnsembles().forEach((first, ensemble) ->
                        fragments.put(first.toString(), ensemble.stream().map(BookieId::toString).toList()));
                    Map<String, String> custom = new LinkedHashMap<>();
                    metadata.getCustomMetadata().forEach((key, value) -> custom.put(key, base64(value)));
                    say("ledger", "id", id, "path", path, "version", read.getVersion().toString(),
                        "format", metadata.getMetadataFormatVersion(), "state", metadata.getState().toString(),
                        "ensemble_size", metadata.getEnsembleSize(),
                        "write_quorum_size", metadata.getWriteQuorumSize(),
                        "ack_quorum_size", metadata.getAckQuorumSize(),
                        "last_entry_id", metadata.getLastEntryId(), "length_bytes", metadata.getLength(),
                        "digest_type", metadata.hasPassword() ? metadata.getDigestType().toString() : null,
                        "password", metadata.hasPassword() ? base64(metadata.getPassword()) : null,
                        "ctime_ms", metadata.getCtime(), "fragments", fragments, "custom_metadata", custom,
                        "canonical", Arrays.equals(format.serialize(parsed), stored));
                } catch (Exception error) {
                    complaints.add(path + ": " + reason(error));
                }
            }
        }
    }

    /** Tasks with their locks, the settings, and the auditor; reading makes the tree, so only where there is one. */
    private void underreplication(LedgerManagerFactory factory) throws Exception {
        String base = root + "/underreplication";
        if (zk.exists(base + "/LAYOUT", false) == null) {
            return;
        }
        seen.add(base + "/LAYOUT");
        try (LedgerUnderreplicationManager tasks = factory.newLedgerUnderreplicationManager()) {
            say("autorecovery", "enabled", tasks.isLedgerReplicationEnabled(),
                "delay", has(base + "/lostBookieRecoveryDelay") ? tasks.getLostBookieRecoveryDelay() : null,
                "all_ledgers", has(base + "/checkallledgersctime") ? tasks.getCheckAllLedgersCTime() : null,
                "placement", has(base + "/placementpolicycheckctime") ? tasks.getPlacementPolicyCheckCTime() : null,
                "replicas", has(base + "/replicascheckctime") ? tasks.getReplicasCheckCTime() : null);
            Iterator<UnderreplicatedLedger> listed = tasks.listLedgersToRereplicate(null);
            while (listed.hasNext()) {
                long id = listed.next().getLedgerId();
                has(ZkLedgerUnderreplicationManager.getUrLedgerZnode(base + "/ledgers", id));
                UnderreplicatedLedger task = tasks.getLedgerUnreplicationInfo(id);
                boolean isLocked = has(ZkLedgerUnderreplicationManager.getUrLedgerLockZnode(base + "/locks", id));
                say("task", "ledger", id, "replicas", task.getReplicaList(), "ctime", task.getCtime(),
                    "worker", isLocked ? tasks.getReplicationWorkerIdRereplicatingLedger(id) : null);
            }
        }
        if (has(base + "/auditorelection")) {
            for (String vote : zk.getChildren(base + "/auditorelection", false)) {
                seen.add(base + "/auditorelection/" + vote);
            }
            LedgerAuditorManager auditors = factory.newLedgerAuditorManager();
            say("auditor", "name", String.valueOf(auditors.getCurrentAuditor()));
            auditors.close();
        }
    }

    private boolean has(String path) throws Exception {
        seen.add(path);
        return zk.exists(path, false) != null;
    }

    /** Leaves with data that none of BookKeeper's classes has asked for: to BookKeeper they do not exist. */
    private void overlooked(String path) throws Exception {
        if (path.equals(root + "/underreplication/spark-bookkeeper")) {
            return; // what is kept there besides is not for BookKeeper
        }
        List<String> children = zk.getChildren(path, false);
        for (String child : children) {
            overlooked(path + "/" + child);
        }
        Stat stat = new Stat();
        byte[] data = zk.getData(path, false, stat);
        if (children.isEmpty() && data != null && data.length > 0 && !seen.contains(path)) {
            complaints.add(path + ": BookKeeper does not find this node");
        }
    }

    private String path(long id) {
        if (id < Integer.MAX_VALUE) {
            String digits = String.format("%010d", id);
            return String.join("/", root, digits.substring(0, 2), digits.substring(2, 6), "L" + digits.substring(6));
        }
        String digits = String.format("%019d", id);
        return String.join("/", root, digits.substring(0, 3), digits.substring(3, 7), digits.substring(7, 11),
            digits.substring(11, 15), "L" + digits.substring(15));
    }

    private byte[] read(String path, Stat stat) throws Exception {
        seen.add(path);
        byte[] data = zk.getData(path, false, stat);
        return data == null ? new byte[0] : data;
    }

    private static void say(String kind, Object... facts) throws Exception {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("kind", kind);
        line.putAll(pairs(facts));
        System.out.println(JSON.writeValueAsString(line));
    }

    private static Map<String, Object> pairs(Object... facts) {
        Map<String, Object> map = new LinkedHashMap<>();
        for (int i = 0; i < facts.length; i += 2) {
            map.put((String) facts[i], facts[i + 1]);
        }
        return map;
    }

    private static String base64(byte[] bytes) {
        return Base64.getEncoder().encodeToString(bytes);
    }

    private static String reason(Throwable error) {
        Throwable cause = error;
        while (cause.getCause() != null) {
            cause = cause.getCause();
        }
        return error == cause ? error.toString() : error + " because of " + cause;
    }
}
