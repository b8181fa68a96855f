import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.URI;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import org.apache.bookkeeper.conf.ClientConfiguration;
import org.apache.bookkeeper.meta.LedgerManager;
import org.apache.bookkeeper.meta.MetadataClientDriver;
import org.apache.bookkeeper.meta.MetadataDrivers;
import org.apache.bookkeeper.replication.BookieLedgerIndexer;
import org.apache.bookkeeper.stats.NullStatsLogger;

/**
 * Apache BookKeeper's look at all ledgers of a cluster: which bookie is named by which.
 *
 * <p>Usage: {@code PeerIndex HOST:PORT ROOT}. Each line on stdin is the id of a bookie. Its auditor's own indexer
 * reads the metadata of every ledger then, and the answer is one JSON object: {@code seconds}, and how many ledgers
 * name that bookie.
 */
public final class PeerIndex {
    private static final ObjectMapper JSON = new ObjectMapper();

    private PeerIndex() {}

    public static void main(String[] args) throws Exception {
        String uri = "zk+hierarchical://" + args[0] + args[1];
        ScheduledExecutorService scheduler = Executors.newSingleThreadScheduledExecutor();
        ClientConfiguration configuration = new ClientConfiguration();
        configuration.setMetadataServiceUri(uri);
        try (MetadataClientDriver driver = MetadataDrivers.getClientDriver(URI.create(uri))) {
            driver.initialize(configuration, scheduler, NullStatsLogger.INSTANCE, Optional.empty());
            try (LedgerManager ledgers = driver.getLedgerManagerFactory().newLedgerManager()) {
                say(Map.of("ready", true));
                BufferedReader asked = new BufferedReader(new InputStreamReader(System.in));
                for (String bookie = asked.readLine(); bookie != null; bookie = asked.readLine()) {
                    long start = System.nanoTime();
                    Map<String, Set<Long>> index = new BookieLedgerIndexer(ledgers).getBookieToLedgerIndex();
                    double seconds = (System.nanoTime() - start) / 1e9;
                    say(Map.of("seconds", seconds, "ledgers", index.getOrDefault(bookie.trim(), Set.of()).size()));
                }
            }
        } catch (Exception broken) {
            say(Map.of("error", String.valueOf(broken)));
        }
        Runtime.getRuntime().halt(0);
    }

    private static void say(Map<String, Object> figures) throws Exception {
        System.out.println(JSON.writeValueAsString(figures));
        System.out.flush();
    }
}
